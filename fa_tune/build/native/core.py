"""Kernels of the C++ core as objects; what it refuses becomes an exception."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import families
from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of
from fa_tune.build.native.library import core_library
from fa_tune.core.errors import (
    DriverError,
    FaTuneError,
    InvalidConfig,
    NoUsableVariant,
    StorageError,
    ToolMissing,
)
from fa_tune.core.model import Artifact
from fa_tune.core.workload import Workload
from fa_tune.families.plan import CallPlan

CURRENT_DEVICE = -1
_ERRORS: dict[abi.Status, type[FaTuneError]] = {
    abi.Status.INVALID: InvalidConfig,
    abi.Status.NOT_FOUND: NoUsableVariant,
    abi.Status.NO_DRIVER: ToolMissing,
}


@dataclass(frozen=True)
class KernelImage:
    """A compiled variant as the core takes it: the name of its config, its plan, the symbol of each
    launch, and a cubin, or PTX with a final zero."""

    config: str
    call: CallPlan
    symbols: tuple[str, ...]
    image: bytes

    @classmethod
    def of(cls, artifact: Artifact) -> KernelImage:
        """The image of an artifact, whose cubin is read; its config is the variant's key.  Raises
        StorageError, and InvalidConfig where C++ has no launch for the family."""
        family = families.get(artifact.variant.family)
        config = families.config_of(artifact.variant)
        call = family.plan(config, artifact.traits, artifact.arch)
        try:
            image = Path(artifact.cubin).read_bytes()
        except OSError as error:
            raise StorageError(f"cannot read {artifact.cubin}: {error.strerror}") from error
        return cls(artifact.variant.key, call, artifact.symbols, image)


class Core:
    """The library, built if need be; `library` is one that is there already.

    Raises ToolMissing without a compiler, see `native.library`.  Nothing here needs a driver before
    a launch.
    """

    def __init__(self, library: Path | None = None, *, cache_dir: Path | None = None) -> None:
        self.library = abi.load(library or core_library(cache_dir))

    def check(self, status: int) -> None:
        """Raise what a status stands for: InvalidConfig, NoUsableVariant, ToolMissing without a
        driver, else DriverError."""
        if status != abi.Status.OK:
            text = self.library.fa_tune_last_error().decode(errors="replace")
            raise _ERRORS.get(abi.Status(status), DriverError)(text)

    def kernel(self, image: KernelImage) -> CoreKernel:
        """A kernel to launch; raises InvalidConfig for a plan that nothing can launch."""
        return CoreKernel(self, image)

    def adopt(
        self, config: str, call: CallPlan, functions: Sequence[int], *, multiprocessors: int = 0
    ) -> CoreKernel:
        """A kernel of functions, one for each launch, that are loaded on the current device and
        allowed their shared memory; the caller keeps their module.  `multiprocessors`: how many
        grids of resident CTAs are made for; 0: all of the device.  Raises InvalidConfig for a plan
        that nothing can launch, ToolMissing without a driver."""
        image = KernelImage(config, call, (), b"")
        return CoreKernel(self, image, functions, multiprocessors)


class CoreKernel:
    """One compiled variant; launches may be made by any threads on any streams at once.  It is
    unloaded with this object, which must outlive its launches."""

    def __init__(
        self,
        core: Core,
        image: KernelImage,
        functions: Sequence[int] | None = None,
        multiprocessors: int = 0,
    ) -> None:
        self.core = core
        self.plan = image.call.plan
        self._info = info = kernel_info(image)  # kept: C++ has the address of its binary
        self._handle = ctypes.c_void_p()
        if functions is None:
            core.check(core.library.fa_tune_kernel_create(info, self._handle))
        else:
            adopt = core.library.fa_tune_kernel_adopt
            pointers = (ctypes.c_void_p * len(functions))(*functions)
            core.check(adopt(info, pointers, CURRENT_DEVICE, multiprocessors, self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.core.library.fa_tune_kernel_destroy(self._handle)

    @property
    def handle(self) -> int:
        """Its fa_tune_kernel, which lives as long as this object."""
        return self._handle.value or 0

    def prepare(self, device: int = CURRENT_DEVICE) -> None:
        """Load it on a device, as a captured launch needs; raises DriverError."""
        self.core.check(self.core.library.fa_tune_prepare(self._handle, device))

    def workspace_bytes(self, problem: abi.Problem | Workload, device: int = CURRENT_DEVICE) -> int:
        """Bytes of device memory that a launch needs as workspace; raises InvalidConfig for what
        the kernel does not compute."""
        n_bytes = ctypes.c_size_t()
        problem = problem_of(problem) if isinstance(problem, Workload) else problem
        ask = self.core.library.fa_tune_workspace_bytes
        self.core.check(ask(self._handle, problem, device, n_bytes))
        return n_bytes.value

    def launch(
        self,
        problem: abi.Problem,
        tensors: abi.Tensors,
        stream: int = 0,
        device: int = CURRENT_DEVICE,
    ) -> None:
        """Enqueue one call.  Raises InvalidConfig for what the kernel does not compute,
        DriverError."""
        self.core.check(
            self.core.library.fa_tune_launch(self._handle, problem, tensors, device, stream)
        )


def kernel_info(image: KernelImage) -> abi.KernelInfo:
    """The image in C, which has all that it points to."""
    call = image.call
    launches = [
        abi.LaunchPlanStruct(launch.params.encode(), *dataclasses.astuple(launch)[1:])
        for launch in call.launches
    ]
    return abi.KernelInfo(
        image.config.encode(),
        abi.PlanStruct(*dataclasses.astuple(call.plan)),
        (abi.LaunchPlanStruct * len(launches))(*launches),
        (ctypes.c_char_p * len(image.symbols))(*(s.encode() for s in image.symbols)),
        ctypes.cast(ctypes.create_string_buffer(image.image, len(image.image)), abi.ConstPointer),
        len(image.image),
    )
