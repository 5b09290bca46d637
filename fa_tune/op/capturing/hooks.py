"""The hooks: operators of torch's dispatcher below autograd, which compiled graphs call as well,
and functions that no operator stands for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from types import ModuleType
from typing import Any

import torch

from fa_tune.core.after_import import AfterImport
from fa_tune.core.errors import ToolMissing
from fa_tune.core.workload import BACKWARD, FORWARD
from fa_tune.op import flash_kv_cache, library, products
from fa_tune.op.cache_op import SCHEMAS, is_traced
from fa_tune.op.capturing import flex
from fa_tune.op.capturing.recorder import Graphs, Recorder, is_real
from fa_tune.op.capturing.sites import Site, of_operator

_ATEN = {  # operator -> who serves it, and whether heads come before rows
    "_scaled_dot_product_flash_attention": ("flash", True),
    "_scaled_dot_product_efficient_attention": ("efficient", True),
    "_scaled_dot_product_cudnn_attention": ("cudnn", True),
    "_scaled_dot_product_flash_attention_for_cpu": ("cpu", True),
    "_flash_attention_forward": ("flash", False),
    "_flash_attention_backward": ("flash", False),
    "_efficient_attention_forward": ("efficient", False),
    "_efficient_attention_backward": ("efficient", False),
    "_cudnn_attention_forward": ("cudnn", True),
    "_cudnn_attention_backward": ("cudnn", True),
}
_MATH = "aten::_scaled_dot_product_attention_math"
_OURS = (*library.FORWARD, "bwd", "own_bwd", "packed_bwd")
_KEYS: tuple[str, ...] = ("CUDA", "CPU")
_ANY_BACKEND = "CompositeExplicitAutograd"
_FUNCTIONS: tuple[tuple[ModuleType, str, str, tuple[str, ...]], ...] = (
    (products, "forward", "products", ("q", "k", "v", "traits")),
    (products, "packed_forward", "products", ("q", "k", "v", "packed", "traits")),
    (products, "gradients", "products", ("done", "traits")),
    (products, "packed_gradients", "products", ("done", "packed", "traits")),
    (flash_kv_cache, "_attend", "fa_tune", ("q", "cache", "options")),
)
# FlashAttention 2's own functions, by the module that its Python calls; all of their arguments.
_FLASH2 = "flash_attn_2_cuda"
_FLASH2_FUNCTIONS = {
    "fwd": "q k v out alibi_slopes p_dropout softmax_scale causal window_left window_right softcap",
    "varlen_fwd": "q k v out cu_seqlens_q cu_seqlens_k seqused_k leftpad block_table alibi_slopes "
    "max_seqlen_q max_seqlen_k p_dropout softmax_scale zeros causal window_left window_right "
    "softcap",
    "fwd_kvcache": "q kcache vcache new_k new_v seqlens_k cos sin batch_idx leftpad block_table "
    "alibi_slopes out softmax_scale causal window_left window_right softcap",
    "bwd": "dout q k v out lse dq dk dv alibi_slopes p_dropout softmax_scale causal window_left "
    "window_right softcap",
    "varlen_bwd": "dout q k v out lse dq dk dv cu_seqlens_q cu_seqlens_k alibi_slopes "
    "max_seqlen_q max_seqlen_k p_dropout softmax_scale zeros causal window_left window_right "
    "softcap",
}


class _Operator:
    """An operator whose calls the recorder is told of, for a dispatch key."""

    def __init__(self, site: Site, key: str, recorder: Recorder) -> None:
        self._site, self._key, self._recorder = site, key, recorder
        self._install()

    def _install(self) -> None:
        # An alias key has no kernel of its own to ask for: that of a CPU is what it stands for.
        asked = self._key if self._key in _KEYS else "CPU"
        self._kernel = torch.library.get_kernel(self._site.name, asked)
        space, _, name = self._site.name.partition("::")
        self._library = torch.library.Library(space, "IMPL")
        with warnings.catch_warnings():  # of an operator that is overridden
            warnings.simplefilter("ignore")
            self._library.impl(name, self._call, self._key, with_keyset=True, allow_override=True)

    def _call(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_real(args):
            return self._run(keys, *args, **kwargs)
        return self._recorder.call(self._site, partial(self._run, keys), args, kwargs)

    def _run(self, keys: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._kernel.call_boxed(keys, *args, **kwargs)
        except RuntimeError as error:
            if "has been invalidated" not in str(error):
                raise
        self.remove()  # whoever was overridden has gone
        self._install()
        return self._kernel.call_boxed(keys, *args, **kwargs)

    def remove(self) -> None:
        self._library._destroy()


@contextmanager
def installed(recorder: Recorder) -> Iterator[None]:
    """All hooks, for as long as the context lasts.  Raises ToolMissing for a torch that cannot give
    its own kernels back."""
    if not hasattr(torch.library, "get_kernel"):
        raise ToolMissing(f"torch {torch.__version__} is too old for capture; 2.10 is not")
    with ExitStack() as stack:
        for operator in _operators(recorder):
            stack.callback(operator.remove)
        for module, name, by, parameters in _FUNCTIONS:
            op: Any = BACKWARD if parameters[0] == "done" else FORWARD
            site = Site(f"{module.__name__}.{name}", by, "fa_tune", op, parameters)
            _replace(stack, module, name, _told(getattr(module, name), site, recorder))
        finder = AfterImport(
            {
                _FLASH2: partial(_hook_flash2, stack, recorder),
                flex.OPERATORS: lambda m: stack.enter_context(flex.operators(recorder, m)),
                flex.TRITON: lambda m: stack.enter_context(flex.compiled(recorder, m)),
            }
        )
        finder.install()
        stack.callback(finder.remove)
        for name in ("capture_begin", "capture_end", "replay"):
            hook = getattr(_Graph, name)(getattr(torch.cuda.CUDAGraph, name))
            _replace(stack, torch.cuda.CUDAGraph, name, hook)
        yield


def _operators(recorder: Recorder) -> Iterator[_Operator]:
    sites: list[tuple[Site | None, tuple[str, ...]]] = []
    for name, (by, heads_first) in _ATEN.items():
        api: Any = "sdpa" if name.startswith("_scaled") else "torch"
        for full in (name, f"{name}_backward") if api == "sdpa" else (name,):
            site = of_operator(f"aten::{full}", by, api, heads_first=heads_first)
            sites.append((site, _KEYS))
    math = of_operator(_MATH, "math", "sdpa", heads_first=True)
    sites.append((math, ("CompositeImplicitAutograd",)))
    ours = dict.fromkeys(_OURS, _KEYS) | dict.fromkeys(SCHEMAS, (_ANY_BACKEND,))
    sites += [(of_operator(f"fa_tune::{n}", "fa_tune", "fa_tune"), k) for n, k in ours.items()]
    for site, keys in sites:
        for key in keys:
            if site is not None and _has_kernel(site.name, key):
                yield _Operator(site, key, recorder)


def _has_kernel(name: str, key: str) -> bool:
    return key not in _KEYS or torch._C._dispatch_has_kernel_for_dispatch_key(name, key)


def _told(function: Callable[..., Any], site: Site, recorder: Recorder) -> Callable[..., Any]:
    @wraps(function)
    def tell(*args: Any, **kwargs: Any) -> Any:
        first = args[0][1] if isinstance(args[0], tuple) else args[0]
        if torch.compiler.is_compiling() or not is_real((first,)) or is_traced(first):
            return function(*args, **kwargs)
        return recorder.call(site, function, args, kwargs)

    return tell


def _replace(stack: ExitStack, holder: Any, name: str, value: Any) -> None:
    """Until the stack is unwound."""
    stack.callback(setattr, holder, name, getattr(holder, name))
    setattr(holder, name, value)


def _hook_flash2(stack: ExitStack, recorder: Recorder, module: ModuleType) -> None:
    for name, parameters in _FLASH2_FUNCTIONS.items():
        op: Any = BACKWARD if "bwd" in name else FORWARD
        site = Site(f"{_FLASH2}.{name}", "flash_attn", "flash_attn", op, tuple(parameters.split()))
        _replace(stack, module, name, _told(getattr(module, name), site, recorder))


class _Graph:
    """The methods of a CUDA graph, told of: what is captured is counted once for each replay."""

    @staticmethod
    def capture_begin(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def begin(graph: Any, *args: Any, **kwargs: Any) -> Any:
            graph._fa_tune_calls = Graphs.current = {}
            return function(graph, *args, **kwargs)

        return begin

    @staticmethod
    def capture_end(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def end(graph: Any) -> Any:
            Graphs.current = None
            return function(graph)

        return end

    @staticmethod
    def replay(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def replay(graph: Any) -> Any:
            for counts, n in getattr(graph, "_fa_tune_calls", {}).items():
                counts.replayed += n
            return function(graph)

        return replay
