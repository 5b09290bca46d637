"""The operators in C++ (csrc/torch): built once, loaded, and told how to choose."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of
from fa_tune.build.native.core import Core
from fa_tune.build.native.library import torch_library
from fa_tune.core.errors import FaTuneError, ToolMissing
from fa_tune.core.workload import EXACT, FAST, FIELDS, Workload
from fa_tune.families.plan import Operation
from fa_tune.op.fallback_warning import tell_of_copies

_LEAST_TORCH = (2, 10)  # of the stable ABI that csrc/torch needs
_TEXT_BYTES = 2048
_RESOLVER = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(abi.Problem),
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
    ctypes.c_size_t,
)
_TELLER = ctypes.CFUNCTYPE(None)
_PROBLEM = ctypes.POINTER(abi.Problem)
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "fa_tune_torch_register": (None, (ctypes.c_char_p,)),
    "fa_tune_torch_set_resolver": (None, (_RESOLVER,)),
    "fa_tune_torch_set_stream": (None, (ctypes.c_void_p,)),
    "fa_tune_torch_set_teller": (None, (_TELLER,)),
    "fa_tune_torch_add_exact": (None, (_PROBLEM, ctypes.c_int)),
    "fa_tune_torch_prepare": (
        ctypes.c_int,
        (_PROBLEM, ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t),
    ),
    "fa_tune_torch_forget": (None, (ctypes.c_char_p,)),
    "fa_tune_torch_choices": (ctypes.c_size_t, ()),
}
# (workload, device) -> the fa_tune_kernel for it, loaded there; device -> the workloads with
# kernels of their own.
Resolve = Callable[[Workload, int], int]
Tuned = Callable[[int], frozenset[Workload]]


class NativeOp:
    """The library.  Raises ToolMissing where there is no compiler, or a torch before 2.10."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        if _torch_version() < _LEAST_TORCH:
            raise ToolMissing(f"torch {torch.__version__} is older than 2.10")
        self.core = Core(torch_library(Path(torch.__file__).parent, cache_dir))
        self._library = self.core.library
        for name, (result, parameters) in _FUNCTIONS.items():
            function = getattr(self._library, name)
            function.restype, function.argtypes = result, parameters
        self._devices: set[int] = set()  # whose tuned workloads C++ knows

    def start(self, resolve: Resolve, tuned: Tuned, dispatch_key: str = "CUDA") -> None:
        """Register the operators, which choose by `resolve`."""
        self._resolve, self._tuned = resolve, tuned
        # Kept as long as the library.
        self._callbacks = _RESOLVER(self._resolved), _TELLER(tell_of_copies)
        self._library.fa_tune_torch_set_resolver(self._callbacks[0])
        self._library.fa_tune_torch_set_teller(self._callbacks[1])
        if torch.version.cuda is not None:
            found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"))
            stream = ctypes.cast(found.aoti_torch_get_current_cuda_stream, ctypes.c_void_p)
            self._library.fa_tune_torch_set_stream(stream)
        self._library.fa_tune_torch_register(dispatch_key.encode())

    def prepare(self, workload: Workload, device: int) -> None:
        """Choose and load the kernel of a workload.  Raises as a call would."""
        text = ctypes.create_string_buffer(_TEXT_BYTES)
        if not self._library.fa_tune_torch_prepare(problem_of(workload), device, text, _TEXT_BYTES):
            raise translated(RuntimeError(text.value.decode(errors="replace")))

    def forget(self, refusal: str) -> None:
        """Choose anew from now on, or fail in every call with a text that begins with the name of
        an exception."""
        self._devices = set()
        self._library.fa_tune_torch_forget(refusal.encode())

    def choices(self) -> int:
        """How many choices C++ keeps: buckets and workloads with kernels of their own."""
        return int(self._library.fa_tune_torch_choices())

    def _resolved(self, problem: Any, device: int, kernel: Any, text: int, size: int) -> int:
        """The resolver: any exception is told in `text`."""
        try:
            if device not in self._devices:
                for workload in filter(_is_of_tensors, self._tuned(device)):
                    self._library.fa_tune_torch_add_exact(problem_of(workload), device)
                self._devices.add(device)
            kernel[0] = self._resolve(workload_of_problem(problem[0]), device)
        except Exception as error:
            message = f"{type(error).__name__}: {error}".encode()[: size - 1]
            ctypes.memmove(text, message + b"\0", len(message) + 1)
            return 0
        return 1


def translated(error: RuntimeError) -> Exception:
    """What C++ tells as text, by the name in front of it; any other error as it is."""
    name, colon, text = str(error).partition(": ")
    known = {kind.__name__: kind for kind in _subclasses(FaTuneError)}
    return known[name](text) if colon and name in known else error


def workload_of_problem(problem: abi.Problem) -> Workload:
    """The workload of a problem, with the usual scale."""
    given = {n: getattr(problem, n) for n, _ in abi.Problem._fields_ if n in FIELDS}
    of_fields = {name: FIELDS[name].type(value) for name, value in given.items()}
    named = {"softmax_scale": None, "softcap": problem.softcap or None, "score_hook": None}
    named["accuracy"] = EXACT if problem.exact else FAST
    for name, side in (("window_left", abi.Window.LEFT), ("window_right", abi.Window.RIGHT)):
        named[name] = given[name] if problem.window & side else None
    return Workload(
        op=Operation(problem.operation).name.lower(),
        causal=problem.mask not in (abi.Mask.FULL, abi.Mask.FULL_DIAGONAL),
        bottom_right=problem.mask in (abi.Mask.CAUSAL_BR, abi.Mask.FULL_DIAGONAL),
        **of_fields | named,
    )


def _is_of_tensors(workload: Workload) -> bool:
    """Whether a call may be of it: one with lengths that only its name has is not, nor one of a
    cache or with a hook."""
    named = workload.score_hook or workload.lengths or workload.cached
    return workload.op.upper() in Operation.__members__ and not named


def _subclasses(kind: type[FaTuneError]) -> list[type[FaTuneError]]:
    return [sub for one in kind.__subclasses__() for sub in (one, *_subclasses(one))]


def _torch_version() -> tuple[int, ...]:
    numbers = torch.__version__.partition("+")[0].split(".")[:2]
    return tuple(int(n) for n in numbers if n.isdigit())
