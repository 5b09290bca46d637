"""Whether code that was loaded has changed what measures and compares it."""

from __future__ import annotations

import gc
import importlib
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any

import torch

MODULES = (
    *("builtins", "ctypes", "gc", "hashlib", "inspect", "io", "json", "math", "os", "random"),
    *("socket", "sys", "threading", "time", "numpy", "numpy.random"),
    *("torch", "torch._C", "torch.autograd", "torch.cuda", "torch.cuda.random"),
    *("torch.cuda.streams", "torch.nn.functional", "torch.profiler", "torch.random"),
    "torch.testing",
)
CLASSES = (
    *(torch.Tensor, torch.Generator),
    *(torch.cuda.Event, torch.cuda.Stream, torch.cuda.CUDAGraph),
)
# torch._dynamo wraps it when it is first used.
CHANGED_BY_TORCH = {"torch.manual_seed"}
CHANGED_BY_VMAP = ("FuncTorch", "Meta")  # dispatch keys that compute nothing
# Of `sys`: what a right program may set.
CHANGED_BY_ANYBODY = {"sys.stdout", "sys.stderr", "sys.stdin", "sys.excepthook"}


class Integrity:
    """Functions and classes of torch, of the standard library and of fa-tune, as they are now."""

    def __init__(self) -> None:
        for name in MODULES:  # numpy loads some of its own when they are asked for
            importlib.import_module(name)
        ours = [name for name in sys.modules if name.partition(".")[0] == "fa_tune"]
        self._modules = (*MODULES, *ours)
        self._before = dict(_namespaces(self._modules))
        # Of our own modules also the code of functions, and methods of classes.
        parts = [part for name in ours for part in self._before[name].values()]
        self._methods = {kind: _functions(vars(kind)) for kind in parts if isinstance(kind, type)}
        functions = _functions(dict(enumerate(parts))), *self._methods.values()
        self._codes = {one: one.__code__ for some in functions for one in some.values()}
        self._operators = set(torch.library._impls)
        self._objects: list[tuple[Any, dict[str, Any]]] = []

    def watch(self, *objects: Any) -> None:
        """Whatever these objects have now, they keep."""
        self._objects += [(one, dict(vars(one))) for one in objects]

    def changed(self) -> list[str]:
        """The names of those that are others by now, or gone."""
        now = dict(_namespaces(self._modules))
        different: set[str] = set()
        for name, parts in self._before.items():
            different |= _others(name, parts, now.get(name, {}))
        for kind, methods in self._methods.items():
            different |= _others(f"{kind.__module__}.{kind.__qualname__}", methods, vars(kind))
        different |= {
            f"{one.__module__}.{one.__qualname__}.__code__"
            for one, code in self._codes.items()
            if one.__code__ is not code
        }
        for one, before in self._objects:
            found, name = vars(one), type(one).__name__
            different |= {
                f"{name}.{attribute}"
                for attribute in {**before, **found}
                if found.get(attribute, self) is not before.get(attribute, self)
            }
        operators = {name for name in torch.library._impls if name.startswith("aten/")}
        for name in operators - self._operators:
            if not name.rpartition("/")[2].startswith(CHANGED_BY_VMAP):
                different.add(name)
        return sorted(different - CHANGED_BY_TORCH - CHANGED_BY_ANYBODY)


class Stillness:
    """A context in which nothing of a target's runs by itself: no hook, no signal's handler, no
    callback of the garbage collector.  Gives the names of torch's modes that are on."""

    def __init__(self) -> None:
        self._hooks = sys.setprofile, sys.settrace
        self._mask, self._signals = signal.pthread_sigmask, signal.valid_signals()
        self._collect = gc.disable, gc.enable
        self._modes = {
            "a mode for torch's operators": torch._C._len_torch_dispatch_stack,
            "a mode for torch's functions": torch._C._len_torch_function_stack,
        }

    def __enter__(self) -> list[str]:
        for hook in self._hooks:
            hook(None)
        if sys.version_info >= (3, 12):
            for tool in range(6):
                if sys.monitoring.get_tool(tool) is not None:
                    sys.monitoring.free_tool_id(tool)
        self._mask(signal.SIG_BLOCK, self._signals)
        self._collect[0]()
        return [name for name, count in self._modes.items() if count()]

    def __exit__(self, *_: object) -> None:
        self._collect[1]()
        self._mask(signal.SIG_SETMASK, ())


def _namespaces(modules: Iterable[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What names stand for: of modules, which are the name "" in it, what can be called; of
    CLASSES all."""
    for name in modules:
        module = sys.modules.get(name)
        if isinstance(module, ModuleType):
            called = {a: part for a, part in list(vars(module).items()) if callable(part)}
            yield name, {"": module, **called}
    for kind in CLASSES:
        attributes: dict[str, Any] = {}
        for base in reversed(kind.__mro__):  # what hides a name of a base counts
            attributes |= vars(base)
        yield f"{kind.__module__}.{kind.__name__}", attributes


def _functions(parts: Mapping[Any, Any]) -> dict[Any, FunctionType]:
    return {name: part for name, part in parts.items() if isinstance(part, FunctionType)}


def _others(name: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> set[str]:
    """Names that stand for something else."""
    return {f"{name}.{a}".rstrip(".") for a, part in before.items() if now.get(a) is not part}
