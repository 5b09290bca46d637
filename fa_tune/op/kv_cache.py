"""Attention to a cache of keys and values whose lengths and places the GPU alone knows."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.core.tensors import check_columns, dtype_of, score_tensors
from fa_tune.core.workload import Workload
from fa_tune.op import python_op, state
from fa_tune.op.cache_launches import Prepared
from fa_tune.op.library import room_for_lse, room_for_out
from fa_tune.op.operands import E4M3, Cache, note_written
from fa_tune.op.traits import Traits

PLAIN = Traits()


def attend(
    q: Tensor,
    cache: Cache,
    traits: Traits = PLAIN,
    *,
    return_lse: bool = False,
    remember: Callable[[Prepared], None] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · Q Kᵀ) V of q [batch, seq_len_q, heads, d_head], on the current stream, like q
    but for V's last dimension; with `return_lse` fp32 [batch, heads, seq_len_q] beside it.

    Masks and windows are aligned bottom-right.  The launch writes new keys and values to their
    places in the cache.  Nothing waits for the GPU, and what is captured in a graph reads lengths
    and table anew in every replay.  `remember` is given the launch if the next one differs in
    nothing but addresses: where all was read as it was given.

    Raises InvalidConfig for tensors that make no such problem, NoUsableVariant where nothing runs
    it.
    """
    cache.check_places(q)
    cache.check_types(q)
    workload = _workload(q, cache, traits, return_lse)
    out, lse = room_for_out(q, cache.v), room_for_lse(q) if return_lse else None
    given, cache = cache, cache.as_read(q)  # kept until the launch: it may have copies
    sink, _ = score_tensors(workload, q.device, traits.sink, None)
    more = {"lse": lse, "sink": sink}
    named = {"q": q, "o": out, **cache.tensors}
    named |= {name: tensor for name, tensor in more.items() if tensor is not None}
    device = q.device.index
    # First: where none runs it, rows may lie as they like.
    kernel = state.operators().kernel_with_cache(workload, device)
    problem, tensors = problem_of(workload), tensors_of(named, added=cache.added)
    python_op.launch(kernel, problem, tensors, device)
    if cache.new is not None:
        note_written(cache.k, cache.v)
    if remember is not None and not any(map(_is_copy, cache.parts, given.parts)):
        n_bytes = kernel.workspace_bytes(problem, device)
        remember(Prepared(kernel, problem, tensors, n_bytes, device))
    return out, lse


def _is_copy(tensor: Tensor | None, given: Tensor | None) -> bool:
    return tensor is not None and given is not None and tensor.data_ptr() != given.data_ptr()


def _workload(q: Tensor, cache: Cache, traits: Traits, lse: bool) -> Workload:
    check_columns(cache.v)
    batch, n_q, heads, d_head = q.shape
    windowed = (traits.window_left, traits.window_right) != (None, None)
    return Workload(
        *(batch, heads, cache.k.shape[2], n_q, cache.capacity, d_head, dtype_of(q)),
        d_head_v=cache.v.shape[3],
        lse=lse,
        kv_e4m3=cache.k.dtype == E4M3,
        **traits.of_workload | {"bottom_right": traits.causal or windowed},
    )
