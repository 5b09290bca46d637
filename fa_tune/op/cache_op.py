"""Attention to a cache as operators: for graphs that torch compiles or traces, which must know what
is written, and for fake tensors.  Other calls go without, which costs less of the host's time.

    fa_tune::cache_fwd         out, and the log-sum-exp, empty unless it is wanted
    fa_tune::cache_append_fwd  the same, after new keys and values were written into the caches
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from fa_tune.op.flash_fallback import Options
from fa_tune.op.library import LIBRARY, room_for_lse, room_for_out
from fa_tune.op.operands import Cache

_PROBLEM = (
    "Tensor lengths, Tensor? block_table, Tensor? k_scale, Tensor? v_scale, bool lse, "
    "bool causal, float? scale, SymInt window_left, SymInt window_right, float softcap, "
    "Tensor? alibi_slopes"
)
_LSE = -7  # its place
_NEW = "Tensor new_k, Tensor new_v"
SCHEMAS = {
    "cache_fwd": f"(Tensor q, Tensor k, Tensor v, {_PROBLEM}) -> (Tensor, Tensor)",
    "cache_append_fwd": (
        f"(Tensor q, Tensor(a!) k, Tensor(b!) v, {_NEW}, {_PROBLEM}) -> (Tensor, Tensor)"
    ),
}
# out, and the log-sum-exp at least where it is wanted.
Attend = Callable[[Tensor, Cache, Options], tuple[Tensor, Tensor | None]]


def define(attend: Attend) -> None:
    """Define the operators, by what attends to a cache."""

    def fwd(q: Tensor, k: Tensor, v: Tensor, *problem: Any, new: Any = None) -> Any:
        lengths, table, k_scale, v_scale, lse, causal, scale, left, right, softcap, slopes = problem
        scales = None if k_scale is None else (k_scale, v_scale)
        cache = Cache(k, v, lengths, new, table, scales)
        options = Options(causal, scale, 0.0, (left, right), softcap, slopes, lse=lse)
        out, rows = attend(q, cache, options)
        return out.contiguous(), _rows(q, lse) if rows is None or not lse else rows.contiguous()

    def append_fwd(
        q: Tensor, k: Tensor, v: Tensor, new_k: Tensor, new_v: Tensor, *problem: Any
    ) -> Any:
        return fwd(q, k, v, *problem, new=(new_k, new_v))

    for name, function in (("cache_fwd", fwd), ("cache_append_fwd", append_fwd)):
        LIBRARY.define(name + SCHEMAS[name], tags=(torch.Tag.pt2_compliant_tag,))
        torch.library.register_fake(f"fa_tune::{name}", _fake, lib=LIBRARY)
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")


def is_traced(q: Tensor) -> bool:
    """Whether the call becomes part of a graph, or has tensors without numbers."""
    return (
        torch.compiler.is_compiling()
        or isinstance(q, FakeTensor)
        or (isinstance(q, Tensor) and q.is_meta)
        or torch._C._len_torch_dispatch_stack() > 0
    )


def call(q: Tensor, cache: Cache, options: Options) -> tuple[Tensor, Tensor | None]:
    """What was defined, by the operators."""
    problem = (
        *(cache.lengths, cache.block_table, *(cache.scales or (None, None)), options.lse),
        *(options.causal, options.scale, *options.window, options.softcap, options.alibi_slopes),
    )
    new = cache.new or ()
    operator = torch.ops.fa_tune.cache_append_fwd if new else torch.ops.fa_tune.cache_fwd
    out, lse = operator.default(q, cache.k, cache.v, *new, *problem)
    return out, lse if options.lse else None


def _rows(q: Tensor, lse: bool) -> Tensor:
    return room_for_lse(q) if lse else q.new_empty(0, dtype=torch.float32)


def _fake(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    return room_for_out(q, v), _rows(q, others[_LSE])
