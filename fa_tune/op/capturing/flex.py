"""flex_attention: its operator where it runs in eager mode, and the Triton kernels that compiled
graphs have in its place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._C import DispatchKey

from fa_tune.core.workload import BACKWARD, FORWARD
from fa_tune.op.capturing.recorder import Recorder
from fa_tune.op.capturing.sites import Site

OPERATORS = "torch._higher_order_ops.flex_attention"
TRITON = "torch._inductor.runtime.triton_heuristics"
_KEY = DispatchKey.CompositeExplicitAutograd
_BY: Any = "flex_attention"


def _site(name: str, parameters: tuple[str, ...]) -> Site:
    op: Any = BACKWARD if "backward" in name else FORWARD
    return Site(name, _BY, _BY, op, parameters, heads_first=True)


@contextmanager
def operators(recorder: Recorder, module: Any) -> Iterator[None]:
    """The higher-order operators: tensors are [batch, heads, seq_len, d_head]."""
    three = ("query", "key", "value")
    names: dict[str, tuple[str, ...]] = {
        "flex_attention": (*three, "", "block_mask"),
        "flex_attention_backward": (*three, *[""] * 6, "block_mask"),
    }
    before = {}
    for name, parameters in names.items():
        operator, site = getattr(module, name), _site(name, parameters)
        before[operator] = function = operator.py_kernels[_KEY]

        def tell(*args: Any, _function: Any = function, _site: Site = site, **kwargs: Any) -> Any:
            return recorder.call(_site, _function, args, kwargs)

        operator.py_kernels[_KEY] = tell
        operator._dispatch_cache.clear()
    try:
        yield
    finally:
        for operator, function in before.items():
            operator.py_kernels[_KEY] = function
            operator._dispatch_cache.clear()


@contextmanager
def compiled(recorder: Recorder, module: Any) -> Iterator[None]:
    """The kernels that torch's compiler makes of it, known by their name and arguments."""
    kind = module.CachingAutotuner
    run = kind.run

    def tell(kernel: Any, *args: Any, **kwargs: Any) -> Any:
        site = kernel.__dict__.get("_fa_tune_site", "")
        if site == "":
            site = kernel._fa_tune_site = _site_of(kernel)
        if site is None or kwargs.get("benchmark_run"):
            return run(kernel, *args, **kwargs)
        return recorder.call(site, lambda *_, **__: run(kernel, *args, **kwargs), args, {})

    kind.run = tell
    try:
        yield
    finally:
        kind.run = run


def _site_of(kernel: Any) -> Site | None:
    """The site of a compiled kernel; None for one that is not flex_attention's."""
    name = str(kernel.inductor_meta.get("kernel_name", ""))
    if "flex_attention" not in name and "flex_decoding" not in name:
        return None
    letters = {"arg_Q": "q", "arg_K": "k", "arg_V": "v", "arg_KV_NUM_BLKS": "block_mask"}
    parameters = tuple(letters.get(given, given) for given in kernel.fn.arg_names)
    return _site(name, parameters) if {"q", "k", "v"} <= {*parameters} else None
