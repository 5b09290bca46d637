"""Tables of the C++ core as objects."""

import ctypes
from collections.abc import Sequence
from typing import Any

from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of
from fa_tune.build.native.core import CURRENT_DEVICE, Core, KernelImage, kernel_info
from fa_tune.core.workload import Workload

WHY_BYTES = 1024


def entry(gpu: str, workload: Workload, config: str) -> abi.Entry:
    """A workload that was tuned on a GPU model, and the config chosen for it."""
    return abi.Entry(gpu.encode(), problem_of(workload), config.encode())


class CoreTable:
    """A table of `images`: `entries`, defaults by size and other `defaults`.  It must outlive its
    launches.  Raises InvalidConfig for an entry or a default without a kernel."""

    def __init__(
        self,
        core: Core,
        images: Sequence[KernelImage],
        entries: Sequence[abi.Entry] = (),
        defaults: Sequence[str] = (),
        sized: Sequence[abi.SizedDefault] = (),
    ) -> None:
        self.core, self.handle = core, ctypes.c_void_p()
        kinds = abi.KernelInfo, abi.Entry, ctypes.c_char_p, abi.SizedDefault
        rows = map(kernel_info, images), entries, (name.encode() for name in defaults), sized
        arrays = [_array(kind, list(some)) for kind, some in zip(kinds, rows, strict=True)]
        self.info = abi.TableInfo(*(part for array in arrays for part in (array, len(array))))
        core.check(core.library.fa_tune_table_create(self.info, self.handle))

    def __del__(self) -> None:
        self.core.library.fa_tune_table_destroy(self.handle)

    def find(self, workload: Workload) -> str:
        """The name of the config that runs a workload; raises NoUsableVariant."""
        return self._name(self._found("fa_tune_find", problem_of(workload)))

    def find_config(self, config: str, workload: Workload) -> str:
        """The same config if it has a kernel for a workload; raises NoUsableVariant."""
        return self._name(self._found("fa_tune_find_config", config.encode(), problem_of(workload)))

    def why(self, workload: Workload) -> str:
        """In words, what `find` gives and why."""
        text = ctypes.create_string_buffer(WHY_BYTES)
        self._call("fa_tune_why", problem_of(workload), CURRENT_DEVICE, text, WHY_BYTES)
        return text.value.decode(errors="replace")

    def prepare(self) -> None:
        """Load every kernel that runs on the current device."""
        self._call("fa_tune_table_prepare", CURRENT_DEVICE)

    def launch(self, problem: abi.Problem, tensors: abi.Tensors, stream: int = 0) -> None:
        """Enqueue the kernel that `find` gives."""
        kernel = self._found("fa_tune_find", problem)
        launch = self.core.library.fa_tune_launch
        self.core.check(launch(kernel, problem, tensors, CURRENT_DEVICE, stream))

    def _call(self, function: str, *arguments: Any) -> None:
        self.core.check(getattr(self.core.library, function)(self.handle, *arguments))

    def _found(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        kernel = ctypes.c_void_p()
        self._call(function, *arguments, CURRENT_DEVICE, kernel)
        return kernel

    def _name(self, kernel: ctypes.c_void_p) -> str:
        return str(self.core.library.fa_tune_kernel_config(kernel).decode())


def _array(kind: Any, rows: list[Any]) -> Any:
    return (kind * len(rows))(*rows)
