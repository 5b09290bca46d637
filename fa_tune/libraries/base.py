"""What a library declares of itself: a runner that others maintain, measured beside our kernels."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fa_tune.core.errors import InvalidConfig, ToolMissing, first_line
from fa_tune.core.model import reference_subject
from fa_tune.core.workload import FORWARD, OPTIONAL, Workload
from fa_tune.operations.base import Launch, Problem

if TYPE_CHECKING:
    import torch

# O of any Q, K and V of a workload, and a scale (None: the usual one).
Attend = Callable[["torch.Tensor", "torch.Tensor", "torch.Tensor", "float | None"], "torch.Tensor"]

UNKNOWN = "unknown"
# The fields with a usual value that most calls know.
BASIC = frozenset({"bottom_right", "lse", "softmax_scale", "d_head_v", "accuracy"})
WINDOW = frozenset({"window_left", "window_right"})
PACKED = frozenset({"packed", "total_q", "total_kv", "lengths"})
CACHE = frozenset({"cache_lengths", "page_size"})
ANY = frozenset(OPTIONAL) - {"op"}


@dataclass(frozen=True)
class Package:
    """A package that kernels come from.

    `distributions` are the names under which it may be installed, the usual one first.  `module`
    is what is imported of it; `install` says how to come by it, empty for what torch brings along.
    `loaded`, which children alone call, asks the library itself for its version.
    """

    name: str
    distributions: tuple[str, ...]
    module: str = ""
    install: str = ""
    loaded: Callable[[], str] | None = None

    @property
    def installed(self) -> str | None:
        """Its version; None where no package manager knows it."""
        for distribution in self.distributions:
            try:
                return importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
        return None

    @property
    def version(self) -> str:
        """Its version as a process that has loaded it knows it; `unknown` if nobody tells."""
        if self.loaded is not None:
            return self.loaded()
        return self.installed or str(getattr(sys.modules.get(self.module), "__version__", UNKNOWN))


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


TORCH = Package("torch", ("torch",), loaded=_torch_version)
CUPY = Package("cupy", ("cupy-cuda13x", "cupy-cuda12x", "cupy"), "cupy")  # launches our kernels


@dataclass(frozen=True)
class Library:
    """A library: what it is called, what its kernels come from and are named, and its calls.

    `name` is that of subjects (`ref:fa2`), `label` what tables and `full_name` what sentences call
    it; `kernel_names` finds its forward kernels by their demangled, mangled or plain names (None:
    they are another library's), `backward_names` those of a backward pass, `tiles` in the former
    (B_r, B_c), as groups `rows` and `keys` (none: as many keys as rows); `dtype_in_names` says
    whether these names tell the element type.  `known` are the fields with a usual value that its
    calls pass on: a workload with any other is refused; `known_by` has them for an operation whose
    call passes on others.
    `calls`: a function for each operation that gives the launch of a problem; it raises
    InvalidConfig, then or at the first launch, for what the library does not take.
    `compiles`: whether the first call of a kind may take minutes.  `attends` gives the function
    that programs call for a workload; it raises InvalidConfig as `calls` do.  `place`: where lists
    have it.
    """

    name: str
    label: str
    full_name: str
    packages: tuple[Package, ...]
    kernel_names: re.Pattern[str] | None
    known: frozenset[str]
    calls: Mapping[str, Callable[[Problem], Launch]]
    known_by: Mapping[str, frozenset[str]] = field(default_factory=dict)
    backward_names: re.Pattern[str] | None = None
    tiles: tuple[re.Pattern[str], ...] = ()
    dtype_in_names: bool = True
    compiles: bool = False
    attends: Callable[[Workload], Attend] | None = None
    place: int = 100

    @property
    def subject(self) -> str:
        return reference_subject(self.name)

    def bind(self, problem: Problem) -> Launch:
        """A call that enqueues one launch and returns what it computed.  Nothing is padded,
        expanded or masked by hand to make a problem fit: its time would not be the library's."""
        self._check(problem.workload)
        return self.calls[problem.workload.op](problem)

    def attend(self, workload: Workload) -> Attend:
        """What computes O alone, of tensors in one piece, for the calls of a program.  Raises
        InvalidConfig where it has no such function, or that does not take the workload."""
        self._check(workload)
        w = workload
        if self.attends is None or w.op != FORWARD or w.lse or w.uneven:
            raise self.refusal("it computes O alone, of dense batches, for programs")
        if w.aligned and not w.bottom_right and w.seq_len_q != w.seq_len_kv:
            raise self.refusal("no mask aligned top-left for lengths that differ")
        return self.attends(workload)

    def _check(self, workload: Workload) -> None:
        operation = workload.op
        if operation not in self.calls:
            raise InvalidConfig(f"{self.name} is not called for the {operation} pass yet")
        known = self.known_by.get(operation, self.known) | {"op"}
        if strange := set(workload.unusual) - known:
            raise InvalidConfig(f"{self.name} is not called with {', '.join(sorted(strange))} yet")

    @property
    def versions(self) -> dict[str, str]:
        """What a process that has called it ran with, by package."""
        return {package.name: package.version for package in self.packages or (TORCH,)}

    def require(self) -> None:
        """Raise ToolMissing if a package is not installed.  Nothing is imported: what cannot be
        loaded although it is there is told by its attempt."""
        for package in self.packages:
            if package.install and find(package.module) is None:
                raise ToolMissing(
                    f"reference {self.name}: {self.full_name} is not installed; {package.install}"
                )

    def refusal(self, why: str) -> InvalidConfig:
        """The error for a problem that the library does not take."""
        return InvalidConfig(f"{self.full_name} does not take this workload: {why}")

    def function(self, module: str, *names: str) -> Any:
        """A function of its package, or without a name the module itself; raises InvalidConfig if
        that cannot be loaded."""
        try:
            found: Any = importlib.import_module(module)
            for name in names:
                found = getattr(found, name)
        except (ImportError, AttributeError, OSError, RuntimeError) as error:
            raise InvalidConfig(
                f"{self.full_name} cannot be loaded: {first_line(error)}"
            ) from error
        return found


def find(module: str, path: Sequence[str] | None = None) -> importlib.machinery.ModuleSpec | None:
    """Where a module, or one within a package, lies on a path (None: Python's); None if nowhere.
    Nothing is run: FlashAttention 2's package, which has the same name as FlashAttention 4's,
    would load torch."""
    found, name = None, ""
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = importlib.machinery.PathFinder.find_spec(name, path)
        if found is None:
            return None
        path = found.submodule_search_locations
    return found


def sides(workload: Workload) -> tuple[int | None, int | None]:
    """The sides of the window, of which a causal mask is the right one."""
    return workload.window_left, 0 if workload.causal else workload.window_right
