"""Attention to a cache of keys and values whose lengths and places the GPU alone knows."""

from __future__ import annotations

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import PAGE_KEYS, CacheArgs, LaunchArgs, TensorArg
from fa_tune.op import python_op, state

DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    *,
    added: int = 0,
    block_table: Tensor | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · Q Kᵀ) V of q [batch, seq_len_q, heads, d_head], on the current stream.

    Sequence b has lengths[b] + `added` keys; a causal mask is aligned bottom-right.  The caches are
    [batch, capacity, kv_heads, d_head] or, with `block_table` [batch, pages of a sequence],
    [pages, page_size, kv_heads, d_head].  Nothing waits for the GPU, and what is captured in a
    graph reads lengths and table anew in every replay.  With `return_lse` fp32 [batch, heads,
    seq_len_q] beside it.

    Raises InvalidConfig for tensors that make no such problem, NoUsableVariant where nothing runs
    it.
    """
    batch, n_q, heads, d_head = q.shape
    _check(q, k_cache, v_cache, lengths, block_table)
    capacity, kv_heads = k_cache.shape[1:3]
    if block_table is not None:
        capacity *= block_table.shape[1]
    workload = Workload(
        *(batch, heads, kv_heads, n_q, capacity, d_head, DTYPES[q.dtype]),
        causal=causal,
        bottom_right=causal,
        lse=return_lse,
        softmax_scale=softmax_scale,
    )
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = q.new_empty((batch, heads, n_q), dtype=torch.float32) if return_lse else None
    lengths = lengths.to(torch.int32).contiguous()
    table = None if block_table is None else block_table.to(torch.int32).contiguous()
    cache = CacheArgs(lengths.data_ptr(), added)
    if table is not None:
        cache = CacheArgs(
            lengths.data_ptr(), added, table.data_ptr(), k_cache.shape[1], table.shape[1]
        )
    args = LaunchArgs.forward(
        q=TensorArg.of(q, "Q"),
        k=TensorArg.of(k_cache, "the cache of K"),
        v=TensorArg.of(v_cache, "the cache of V"),
        o=TensorArg.of(out, "O"),
        lse=TensorArg(0 if lse is None else lse.data_ptr()),
        cache=cache,
    )
    device = q.device.index
    kernel = state.operators().kernel_with_cache(workload, device)
    python_op.launch(kernel, workload, args, device)
    return out, lse


def _check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, block_table: Tensor | None
) -> None:
    """What kernels take on trust: they would read beyond tensors that are too small."""
    batch = q.shape[0]
    if tuple(lengths.shape) != (batch,):
        raise InvalidConfig(f"lengths must be [{batch}], one a sequence, not {[*lengths.shape]}")
    if k_cache.shape != v_cache.shape or k_cache.shape[3] != q.shape[3]:
        raise InvalidConfig(
            f"the caches must be alike, with d_head {q.shape[3]}; they are "
            f"{[*k_cache.shape]} and {[*v_cache.shape]}"
        )
    if block_table is None:
        if k_cache.shape[0] != batch:
            raise InvalidConfig(f"the caches have {k_cache.shape[0]} sequences, Q has {batch}")
    elif block_table.ndim != 2 or block_table.shape[0] != batch:
        raise InvalidConfig(f"a block table must be [{batch}, pages], not {[*block_table.shape]}")
    others = (k_cache, v_cache, lengths, *(() if block_table is None else (block_table,)))
    if any(t.device != q.device for t in others):
        raise InvalidConfig(f"caches, lengths and block table must be on {q.device}, as Q")


def pages_suit(k_cache: Tensor, v_cache: Tensor) -> bool:
    """Whether kernels take the second dimension of the caches as a page."""
    return bool(k_cache.shape == v_cache.shape and k_cache.shape[1] % PAGE_KEYS == 0)
