"""Kernels and tables of the C++ core as objects; what it refuses becomes an exception."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from fa_tune.families.plan import CallPlan, LaunchPlan

CURRENT_DEVICE = -1
_WHY_BYTES = 1024
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


@dataclass(frozen=True)
class TableDefault:
    """What runs workloads of few queries like this one untuned, from a compute capability on."""

    compute_capability: int
    workload: Workload
    config: str


@dataclass(frozen=True)
class TableEntry:
    """A workload that was tuned on a GPU model, and the name of the config chosen for it."""

    gpu: str
    workload: Workload
    config: str


class Core:
    """The library, built if need be; `library` is one that is there already.

    Raises ToolMissing without a compiler, see `native.build`.  Nothing here needs a driver before
    `init`, a lookup or a launch.
    """

    def __init__(self, library: Path | None = None, *, cache_dir: Path | None = None) -> None:
        self.library = abi.load(library or core_library(cache_dir))

    def check(self, status: int) -> None:
        """Raise what a status stands for: InvalidConfig, NoUsableVariant, ToolMissing without a
        driver, else DriverError."""
        if status != abi.Status.OK:
            text = self.library.fa_tune_last_error().decode(errors="replace")
            raise _ERRORS.get(abi.Status(status), DriverError)(text)

    def init(self) -> None:
        """Load the driver; raises ToolMissing without one."""
        self.check(self.library.fa_tune_init())

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

    def described(self, config: str, call: CallPlan) -> CoreKernel:
        """A kernel to describe launches of, which is never launched.  Raises InvalidConfig for a
        plan that nothing can launch."""
        symbols = tuple(f"launch_{i}" for i in range(len(call.launches)))
        return CoreKernel(self, KernelImage(config, call, symbols, b"none"))

    def table(
        self,
        images: Sequence[KernelImage],
        entries: Sequence[TableEntry] = (),
        defaults: Sequence[str] = (),
        sized: Sequence[TableDefault] = (),
    ) -> CoreTable:
        """A table that chooses among `images`; see `CoreTable`."""
        return CoreTable(self, images, entries, defaults, sized)


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
        self._core = core
        self.plan = image.call.plan
        self._kept = _Kept()
        self._handle = ctypes.c_void_p()
        info = self._kept.info(image)
        if functions is None:
            core.check(core.library.fa_tune_kernel_create(info, self._handle))
        else:
            adopt = core.library.fa_tune_kernel_adopt
            pointers = (ctypes.c_void_p * len(functions))(*functions)
            core.check(adopt(info, pointers, CURRENT_DEVICE, multiprocessors, self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._core.library.fa_tune_kernel_destroy(self._handle)

    @property
    def handle(self) -> int:
        """Its fa_tune_kernel, which lives as long as this object."""
        return self._handle.value or 0

    def prepare(self, device: int = CURRENT_DEVICE) -> None:
        """Load it on a device, as a captured launch needs; raises DriverError."""
        self._core.check(self._core.library.fa_tune_prepare(self._handle, device))

    def workspace_bytes(self, problem: abi.Problem | Workload, device: int = CURRENT_DEVICE) -> int:
        """Bytes of device memory that a launch needs as workspace; raises InvalidConfig for what
        the kernel does not compute."""
        n_bytes = ctypes.c_size_t()
        problem = problem_of(problem) if isinstance(problem, Workload) else problem
        ask = self._core.library.fa_tune_workspace_bytes
        self._core.check(ask(self._handle, problem, device, n_bytes))
        return n_bytes.value

    def describe(
        self, problem: abi.Problem, tensors: abi.Tensors, device: DeviceFacts, launch: int = 0
    ) -> Description:
        """What a call passes to the driver for one of its launches, on a device that need not be
        there; it may lack its workspace.  Raises InvalidConfig for what the kernel does not
        compute."""
        facts = abi.DeviceFacts(
            multiprocessors=device.multiprocessors,
            l2_bytes=device.l2_bytes,
            counters=device.counters,
        )
        found = abi.Description()
        describe = self._core.library.fa_tune_describe
        self._core.check(describe(self._handle, problem, tensors, facts, launch, found))
        return Description.of(found)

    def launch(
        self,
        problem: abi.Problem,
        tensors: abi.Tensors,
        stream: int = 0,
        device: int = CURRENT_DEVICE,
    ) -> None:
        """Enqueue one call.  Raises InvalidConfig for what the kernel does not compute,
        DriverError."""
        self._core.check(
            self._core.library.fa_tune_launch(self._handle, problem, tensors, device, stream)
        )


@dataclass(frozen=True)
class DeviceFacts:
    """What a launch depends on beside its workload and tensors; `counters`: the address of zeros in
    device memory, of as many bytes as the plan says."""

    multiprocessors: int
    l2_bytes: int
    counters: int = 0


@dataclass(frozen=True)
class TensorMap:
    """What the driver is told of a tensor whose boxes are 64 columns by `box_rows` rows: dimensions
    innermost first, strides in bytes of all but the innermost."""

    address: int
    data_type: int
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    box_rows: int


@dataclass(frozen=True)
class Description:
    """One launch: the kernel takes the tensor maps, then the struct whose bytes `params` has.
    `workspace_bytes`: of the call, whether or not it is given."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared_bytes: int
    dependent: bool
    maps: tuple[TensorMap, ...]
    params: bytes
    workspace_bytes: int

    @classmethod
    def of(cls, d: abi.Description) -> Description:
        """A description that the core has filled in."""
        maps = tuple(
            TensorMap(
                m.address,
                m.data_type,
                tuple(m.dimensions[: m.rank]),
                tuple(m.strides[: m.rank - 1]),
                m.box_rows,
            )
            for m in d.maps[: d.map_count]
        )
        params = bytes(d.params)[: d.params_bytes]
        x, y, z = d.grid
        threads, (cluster_x, cluster_y, cluster_z) = d.block[0], d.cluster
        return cls(
            (x, y, z),
            (threads, 1, 1),
            (cluster_x, cluster_y, cluster_z),
            d.shared_bytes,
            bool(d.dependent),
            maps,
            params,
            d.workspace_bytes,
        )


class CoreTable:
    """Which kernel serves a problem: `entries` by `store.registry.lookup`'s rules, those that serve
    equally well in their order; else the nearest of `sized` by export.sizes' rules, else the first
    of `defaults` that can.  It must outlive its launches.

    Raises InvalidConfig for an entry or a default without a kernel.
    """

    def __init__(
        self,
        core: Core,
        images: Sequence[KernelImage],
        entries: Sequence[TableEntry],
        defaults: Sequence[str],
        sized: Sequence[TableDefault] = (),
    ) -> None:
        self._core = core
        self._kept = _Kept()
        self._handle = ctypes.c_void_p()
        infos = (abi.KernelInfo * len(images))(*(self._kept.info(image) for image in images))
        rows = (abi.Entry * len(entries))(
            *(abi.Entry(e.gpu.encode(), problem_of(e.workload), e.config.encode()) for e in entries)
        )
        names = (ctypes.c_char_p * len(defaults))(*(name.encode() for name in defaults))
        by_size = (abi.SizedDefault * len(sized))(
            *(
                abi.SizedDefault(d.compute_capability, problem_of(d.workload), d.config.encode())
                for d in sized
            )
        )
        info = abi.TableInfo(
            infos, len(infos), rows, len(rows), names, len(names), by_size, len(by_size)
        )
        core.check(core.library.fa_tune_table_create(info, self._handle))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._core.library.fa_tune_table_destroy(self._handle)

    def find(self, workload: Workload, device: int = CURRENT_DEVICE) -> str:
        """The name of the config that runs a workload; raises NoUsableVariant."""
        return self._name(self._core.library.fa_tune_find, problem_of(workload), device)

    def find_config(self, config: str, workload: Workload, device: int = CURRENT_DEVICE) -> str:
        """The same config if it has a kernel for a workload; raises NoUsableVariant."""
        find = self._core.library.fa_tune_find_config
        return self._name(find, config.encode(), problem_of(workload), device)

    def why(self, workload: Workload, device: int = CURRENT_DEVICE) -> str:
        """In words, what `find` gives and why."""
        text = ctypes.create_string_buffer(_WHY_BYTES)
        self._core.check(
            self._core.library.fa_tune_why(
                self._handle, problem_of(workload), device, text, _WHY_BYTES
            )
        )
        return text.value.decode(errors="replace")

    def prepare(self, device: int = CURRENT_DEVICE) -> None:
        """Load every kernel that runs on a device, as captured launches need."""
        self._core.check(self._core.library.fa_tune_table_prepare(self._handle, device))

    def launch(
        self,
        problem: abi.Problem,
        tensors: abi.Tensors,
        stream: int = 0,
        device: int = CURRENT_DEVICE,
    ) -> None:
        """Enqueue the kernel that `find` gives."""
        library, kernel = self._core.library, ctypes.c_void_p()
        self._core.check(library.fa_tune_find(self._handle, problem, device, kernel))
        self._core.check(library.fa_tune_launch(kernel, problem, tensors, device, stream))

    def _name(self, find: Any, *arguments: Any) -> str:
        kernel = ctypes.c_void_p()
        self._core.check(find(self._handle, *arguments, kernel))
        return str(self._core.library.fa_tune_kernel_config(kernel).decode())


def _launch_plan(launch: LaunchPlan) -> abi.LaunchPlanStruct:
    return abi.LaunchPlanStruct(launch.params.encode(), *dataclasses.astuple(launch)[1:])


class _Kept:
    """What C++ looks at for as long as a kernel or a table lives; `objects` are all of it."""

    def __init__(self) -> None:
        self._objects: list[Any] = []

    def info(self, image: KernelImage) -> abi.KernelInfo:
        call = image.call
        launches = (abi.LaunchPlanStruct * len(call.launches))(
            *(_launch_plan(launch) for launch in call.launches)
        )
        symbols = (ctypes.c_char_p * len(image.symbols))(*(s.encode() for s in image.symbols))
        code = ctypes.create_string_buffer(image.image, len(image.image))
        info = abi.KernelInfo(
            image.config.encode(),
            abi.PlanStruct(*dataclasses.astuple(call.plan)),
            launches,
            symbols,
            ctypes.cast(code, abi.ConstPointer),
            len(image.image),
        )
        self._objects += [info, launches, symbols, code]
        return info
