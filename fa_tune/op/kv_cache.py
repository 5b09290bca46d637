"""Attention to a cache of keys and values whose lengths and places the GPU alone knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import score_tensors
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import PAGE_KEYS, CacheArgs, LaunchArgs, TensorArg
from fa_tune.op import python_op, state

E4M3 = torch.float8_e4m3fn
DTYPES = {torch.float16: DType.FP16, torch.bfloat16: DType.BF16}


@dataclass(frozen=True)
class Scores:
    """What changes scores, or hides them, beside a causal mask; as in `fa_tune.op.attention`."""

    window: tuple[int | None, int | None] = (None, None)
    sink: Tensor | None = None
    softcap: float | None = None


PLAIN = Scores()


def attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    lengths: Tensor,
    *,
    new: tuple[Tensor, Tensor] | None = None,
    block_table: Tensor | None = None,
    causal: bool = False,
    softmax_scale: float | None = None,
    scores: Scores = PLAIN,
    kv_scales: tuple[Tensor, Tensor] | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """softmax(scale · Q Kᵀ) V of q [batch, seq_len_q, heads, d_head], on the current stream.

    Sequence b has lengths[b] keys; masks and windows are aligned bottom-right.  The caches are
    [batch, capacity, kv_heads, d_head] or, with `block_table` [batch, pages of a sequence],
    [pages, page_size, kv_heads, d_head]; that of V may have another last dimension, which is then
    that of the result.  `new` keys and values, [batch, some, kv_heads, d_head], come behind those
    of the cache, and the same launch writes them there.  Nothing waits for the GPU, and what is
    captured in a graph reads lengths and table anew in every replay.  With `return_lse` fp32
    [batch, heads, seq_len_q] beside it.

    Caches of torch.float8_e4m3fn are multiplied with `kv_scales`, fp32 of K and of V that expand
    to [batch, kv_heads].

    Raises InvalidConfig for tensors that make no such problem, NoUsableVariant where nothing runs
    it.
    """
    batch, n_q, heads, d_head = q.shape
    _check(q, k_cache, v_cache, lengths, block_table)
    capacity, kv_heads = k_cache.shape[1:3]
    if block_table is not None:
        capacity *= block_table.shape[1]
    windowed = scores.window != (None, None)
    workload = Workload(
        *(batch, heads, kv_heads, n_q, capacity, d_head, DTYPES[q.dtype]),
        d_head_v=v_cache.shape[3],
        causal=causal,
        bottom_right=causal or windowed,
        lse=return_lse,
        softmax_scale=softmax_scale,
        window_left=scores.window[0],
        window_right=scores.window[1],
        sink=scores.sink is not None,
        softcap=scores.softcap,
        kv_e4m3=k_cache.dtype == E4M3,
    )
    out = q.new_empty((*q.shape[:3], v_cache.shape[3]))
    lse = q.new_empty((batch, heads, n_q), dtype=torch.float32) if return_lse else None
    lengths = lengths.to(torch.int32).contiguous()
    cache = CacheArgs(lengths.data_ptr())
    if block_table is not None:
        block_table = block_table.to(torch.int32).contiguous()
        cache = replace(
            cache,
            pages=block_table.data_ptr(),
            page_size=k_cache.shape[1],
            page_stride=block_table.shape[1],
        )
    if new is not None:
        _check_new(new, q, k_cache, v_cache)
        cache = replace(
            cache, added=new[0].shape[1], new_k=_narrow(new[0], "k"), new_v=_narrow(new[1], "v")
        )
    sink, _ = score_tensors(workload, q.device, scores.sink, None)
    args = LaunchArgs.forward(
        q=TensorArg.of(q, "Q"),
        k=_narrow(k_cache, "the cache of K"),
        v=_narrow(v_cache, "the cache of V"),
        o=TensorArg.of(out, "O"),
        lse=TensorArg(0 if lse is None else lse.data_ptr()),
        sink=TensorArg(0 if sink is None else sink.data_ptr()),
        cache=cache,
    )
    if kv_scales is not None:  # kept until the launch: they may be copies
        kv_scales = _scales(kv_scales, (batch, kv_heads), q.device)
        args = replace(args, tensors={**args.tensors, **_scale_args(kv_scales)})
    device = q.device.index
    kernel = state.operators().kernel_with_cache(workload, device)
    python_op.launch(kernel, workload, args, device)
    return out, lse


def check_places(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, block_table: Tensor | None
) -> None:
    """Raise InvalidConfig for lengths, caches and pages that are not those of the queries."""
    batch = q.shape[0]
    if tuple(lengths.shape) != (batch,):
        raise InvalidConfig(f"lengths must be [{batch}], one a sequence, not {[*lengths.shape]}")
    if k_cache.shape[:3] != v_cache.shape[:3] or k_cache.shape[3] != q.shape[3]:
        raise InvalidConfig(
            f"the caches must be alike, that of K with d_head {q.shape[3]}; they are "
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


def check_new_places(new: tuple[Tensor, Tensor], q: Tensor, caches: tuple[Tensor, Tensor]) -> None:
    """Raise InvalidConfig for new keys and values that have no place in the caches."""
    for tensor, cache, name in zip(new, caches, "kv", strict=True):
        shape = (q.shape[0], *new[0].shape[1:2], *cache.shape[2:])
        if tuple(tensor.shape) != shape or tensor.device != q.device:
            raise InvalidConfig(
                f"{name} must be {[*shape]} on {q.device}, as its cache; it is "
                f"{[*tensor.shape]} on {tensor.device}"
            )


def _check(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, lengths: Tensor, block_table: Tensor | None
) -> None:
    """What kernels take on trust: they would read beyond tensors that are too small."""
    check_places(q, k_cache, v_cache, lengths, block_table)
    if k_cache.dtype != v_cache.dtype or k_cache.dtype not in (q.dtype, E4M3):
        raise InvalidConfig(
            f"the caches must both be {q.dtype} as Q, or {E4M3}; they are {k_cache.dtype} and "
            f"{v_cache.dtype}"
        )


def _check_new(new: tuple[Tensor, Tensor], q: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    check_new_places(new, q, (k_cache, v_cache))
    if any(t.dtype != k_cache.dtype for t in new):
        raise InvalidConfig(
            f"k and v must be {k_cache.dtype}, as their caches; they are {new[0].dtype} and "
            f"{new[1].dtype}"
        )


def _narrow(tensor: Tensor, name: str) -> TensorArg:
    """Pairs of e4m3 numbers are elements of two bytes."""
    if tensor.dtype == E4M3:
        if tensor.stride(3) != 1 or tensor.shape[3] % 2 or any(s % 2 for s in tensor.stride()[:3]):
            raise InvalidConfig(f"{name} must have d_head contiguous and even strides")
        tensor = tensor.view(torch.int16)
    return TensorArg.of(tensor, name)


def _scales(
    scales: tuple[Tensor, Tensor], shape: tuple[int, int], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Both with the same strides."""
    try:
        both = [s.to(device=device, dtype=torch.float32).expand(shape) for s in scales]
    except RuntimeError:
        told = " and ".join(str([*s.shape]) for s in scales)
        raise InvalidConfig(f"scales must expand to {[*shape]}; they are {told}") from None
    if both[0].stride() != both[1].stride():
        both = [s.contiguous() for s in both]
    return both[0], both[1]


def _scale_args(scales: tuple[Tensor, Tensor]) -> dict[str, TensorArg]:
    return {
        name: TensorArg(s.data_ptr(), (s.stride(0), s.stride(1), 0))
        for name, s in zip(("k_scale", "v_scale"), scales, strict=True)
    }


def pages_suit(k_cache: Tensor) -> bool:
    """Whether kernels take the second dimension of the caches as a page."""
    return bool(k_cache.shape[1] % PAGE_KEYS == 0)
