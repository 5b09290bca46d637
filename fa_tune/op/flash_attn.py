"""FlashAttention 2's functions: by our kernels where they can, by torch's FlashAttention 2 where it
can, else by plain matrix products.

Causal masks are aligned bottom-right.  Dropout is torch's, or with ALiBi and softcap matrix
products, which need memory for all scores.  Head dimensions that no kernel has are filled up with
columns of zeros.
"""

from __future__ import annotations

import reprlib
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.workload import MAX_SOFTCAP, MIN_SOFTCAP
from fa_tune.op.api import attention
from fa_tune.op.fallback_warning import tell
from fa_tune.op.flash_fallback import (
    DENSE,
    EVERY,
    FLASH2_D_HEAD,
    HALF,
    PACKED,
    Options,
    Window,
    by_flash2,
    by_products,
    check,
    check_floating,
    check_integers,
    check_kinds,
    check_options,
    suits_flash2,
)
from fa_tune.op.kv_cache import E4M3, Cache, attend, check_new_places, pages_suit
from fa_tune.op.operands import Lengths
from fa_tune.op.packed import packed_attention

# Head dimensions are multiples of this in torch's FlashAttention 2 and of this in our kernels.
_WHOLE, _OURS = 8, 32
_refused: dict[tuple[int, int, torch.dtype], str] = {}
_refused_caches: dict[tuple[int, int, torch.dtype, torch.dtype], str] = {}


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = EVERY,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    *,
    score_hook: str | None = None,
) -> Any:
    """Attention of [batch, seq_len, heads, d_head] tensors, like q.  `return_attn_probs` gives
    (out, log-sum-exp fp32 [batch, heads, seq_len_q], None).

    `deterministic` is torch's `use_deterministic_algorithms`, and has no effect here.
    `score_hook`: as for `attention`.  Raises InvalidConfig for tensors that make no such problem,
    and for a score hook where our kernels do not compute it.
    """
    options = Options(
        causal, softmax_scale, dropout_p, window_size, softcap, alibi_slopes, score_hook
    )
    check_options(options, q.shape[0], q.shape[-2])
    out, lse = _dense(q, k, v, options, return_attn_probs)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = EVERY,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
    *,
    score_hook: str | None = None,
) -> Any:
    """Attention of packed sequences: q [total_q, heads, d_head]; sequence i is rows
    cu_seqlens_q[i] to cu_seqlens_q[i + 1], int32.  The log-sum-exp is [heads, total_q].  Else as
    `flash_attn_func`; a block table is refused with InvalidConfig.  A score hook is told the
    sequence's number as `batch`, and places that count from its first row and key.

    What lies on a GPU is taken on trust, since looking would wait for it: starts must rise, end
    within the tensors, and leave no sequence longer than `max_seqlen_q` and `max_seqlen_k`.
    Where matrix products stand in, on the CPU for instance, others are refused with InvalidConfig.
    """
    if block_table is not None:
        _refuse("a block table")
    options = Options(
        causal, softmax_scale, dropout_p, window_size, softcap, alibi_slopes, score_hook
    )
    for name, bounds in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_integers(name, bounds)
    check_options(options, len(cu_seqlens_q) - 1, q.shape[-2])
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    out, lse = _varlen(q, k, v, options, lengths, return_attn_probs)
    return (out, lse, None) if return_attn_probs else out


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = EVERY,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
    *,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
) -> Any:
    """Attention to the first `cache_seqlens` keys of a cache (None: all), after `k` and `v` were
    written behind them, in place.  It has no gradients.  `return_softmax_lse` gives (out,
    log-sum-exp).

    With a `block_table` [batch, pages of a sequence] the caches are [pages, page_size, kv_heads,
    d_head].  A tensor of lengths is read by the GPU alone, in every replay of a captured graph
    anew.  `num_splits` is only about speed and has no effect.  Rotary embeddings and padding on the
    left are refused with InvalidConfig.

    Caches of torch.float8_e4m3fn, with new keys and values of that type, are multiplied with
    `k_descale` and `v_descale`, fp32 that expand to [batch, kv_heads]; None: 1.  Beside caches of
    another type they are refused.
    """
    for name, given in (
        ("rotary embeddings", rotary_cos if rotary_cos is not None else rotary_sin),
        ("padding on the left", cache_leftpad),
        ("cache_batch_idx beside a block table", cache_batch_idx if _paged(block_table) else None),
    ):
        if given is not None:
            _refuse(name)
    if any(t.ndim != 4 for t in (q, k_cache, v_cache)):
        shapes = ", ".join(str([*t.shape]) for t in (q, k_cache, v_cache))
        raise InvalidConfig(f"Q and the caches must have four dimensions: {shapes}")
    if _paged(block_table) and cache_seqlens is None:
        raise InvalidConfig("a block table needs cache_seqlens: pages may be partly filled")
    new = _new_keys(k, v, cache_seqlens)
    lengths: int | Tensor = k_cache.shape[1] if cache_seqlens is None else cache_seqlens
    options = Options(causal, softmax_scale, 0.0, window_size, softcap, alibi_slopes)
    check_options(options, q.shape[0], q.shape[2])
    for name, indices in (("cache_seqlens", lengths), ("cache_batch_idx", cache_batch_idx)):
        if indices is not None and not isinstance(indices, int):
            check_integers(name, indices)
    if k_cache.dtype != E4M3 and (k_descale is not None or v_descale is not None):
        raise InvalidConfig(f"k_descale and v_descale are of caches of {E4M3}, not {k_cache.dtype}")
    with torch.no_grad():
        if not isinstance(lengths, Tensor):
            _check_length(lengths, new, k_cache, block_table)
            if not _paged(block_table) and k_cache.dtype != E4M3:
                caches = _with_new(new, q, (k_cache, v_cache), lengths, cache_batch_idx)
                out, lse = _dense(q, *caches, options, return_softmax_lse)
                return (out, lse) if return_softmax_lse else out
            lengths = torch.full((q.shape[0],), lengths, device=q.device, dtype=torch.int32)
        table = block_table
        if cache_batch_idx is not None:  # each sequence is one page
            table = cache_batch_idx[:, None]
        scales = _scales(k_cache, k_descale, v_descale)
        cache = Cache(k_cache, v_cache, lengths, new, table, scales)
        out, lse = _cached(q, cache, options, return_softmax_lse)
    return (out, lse) if return_softmax_lse else out


def _new_keys(
    k: Tensor | None, v: Tensor | None, lengths: int | Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Raise InvalidConfig for new keys without values, or without a place."""
    if (k is None) != (v is None):
        raise InvalidConfig("k and v are appended together: give both or neither")
    if k is None or v is None:
        return None
    if lengths is None:
        raise InvalidConfig("k and v have no place in the cache without cache_seqlens")
    return k, v


def _with_new(
    new: tuple[Tensor, Tensor] | None,
    q: Tensor,
    caches: tuple[Tensor, Tensor],
    length: int,
    batch_idx: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The first `length` keys and values of each sequence of the batch and what is new, which is
    written behind them."""
    if new is not None:
        check_new_places(new, q, caches)
        for cache, given in zip(caches, new, strict=True):
            _append(cache, given, length, batch_idx, None)
        length += new[0].shape[1]
    keys, values = (_of_batch(cache, batch_idx)[:, :length] for cache in caches)
    return keys, values


def _check_length(
    length: int,
    new: tuple[Tensor, Tensor] | None,
    k_cache: Tensor,
    block_table: Tensor | None,
) -> None:
    """Raise InvalidConfig for keys that a cache has no room for."""
    capacity = k_cache.shape[1] * (1 if block_table is None else block_table.shape[-1])
    added = 0 if new is None else new[0].shape[1]
    if not 0 <= length <= capacity - added:
        raise InvalidConfig(
            f"cache_seqlens {length} and {added} new keys: the cache has room for {capacity}"
        )


def _paged(block_table: Tensor | None) -> bool:
    return block_table is not None


def _of_batch(cache: Tensor, batch_idx: Tensor | None) -> Tensor:
    return cache if batch_idx is None else cache[batch_idx.long()]


def _append(
    cache: Tensor,
    new: Tensor,
    length: int | Tensor,
    batch_idx: Tensor | None,
    block_table: Tensor | None,
) -> None:
    """What has no room is dropped, as our kernels do: the GPU alone may know the lengths."""
    each = torch.arange(new.shape[0], device=cache.device)
    rows = each if batch_idx is None else batch_idx
    start = length if isinstance(length, Tensor) else torch.full_like(rows, length)
    if cache.dtype == E4M3:  # whose numbers torch does not place
        cache, new = cache.view(torch.uint8), new.view(torch.uint8)
    size = cache.shape[1]
    capacity = size if block_table is None else size * block_table.shape[1]
    if not capacity:
        return
    room = capacity - start.long()[:, None]
    # Those without room repeat the last one that has, or what is in the last place.
    which = torch.arange(new.shape[1], device=cache.device).minimum(room - 1).clamp(min=0)
    places = (start.long()[:, None] + which).clamp(0, capacity - 1)
    if block_table is None:
        where = (rows.long()[:, None], places)
    else:
        where = (block_table.long().gather(1, places // size), places % size)
    given = new.to(cache.dtype)[each[:, None], which]
    cache[where] = torch.where((room > 0)[..., None, None], given, cache[where])


def _scales(
    k_cache: Tensor, k_descale: Tensor | None, v_descale: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Both, for a cache that has them."""
    if k_cache.dtype != E4M3 or (k_descale is None and v_descale is None):
        return None
    one = torch.ones((), device=k_cache.device)
    return one if k_descale is None else k_descale, one if v_descale is None else v_descale


def _why_no_kernel(q: Tensor, cache: Cache, options: Options) -> str:
    """Why our kernels do not attend to a cache, in a few words; "" if they do."""
    kinds = {t.dtype for t in (cache.k, cache.v, *(cache.new or ()))}
    alike = cache.k.shape[:3] == cache.v.shape[:3] and len(kinds) == 1
    asked = {
        "ALiBi with lengths or pages": options.alibi_slopes is not None,
        f"caches of {cache.k.dtype} {tuple(cache.k.shape)}, {cache.v.dtype} "
        f"{tuple(cache.v.shape)} and new keys and values": not alike
        or cache.k.dtype not in (q.dtype, E4M3),
        f"pages of {cache.k.shape[1]} keys": cache.block_table is not None
        and not pages_suit(cache.k),
        "a window that does not see all new keys": 0
        <= options.window[0]
        < cache.added - q.shape[1],
    }
    return next((name for name, wanted in asked.items() if wanted), "")


def _cached(
    q: Tensor, cache: Cache, options: Options, wants_lse: bool
) -> tuple[Tensor, Tensor | None]:
    reason = _why_not_ours(q, cache.k, cache.v, options) or _why_no_kernel(q, cache, options)
    kind = (q.shape[3], cache.v.shape[3], q.dtype, cache.k.dtype)
    reason = reason or _refused_caches.get(kind, "")
    if not reason:
        try:
            return attend(q, cache, options.traits, return_lse=wants_lse)
        except NoUsableVariant as error:
            reason = _refused_caches[kind] = str(error)
    cache.check_places(q)
    check_floating(q, cache.k, cache.v)
    tell("flash_attn_with_kvcache", reason)
    lengths = cache.lengths
    if cache.new is not None:
        _append(cache.k, cache.new[0], lengths, None, cache.block_table)
        _append(cache.v, cache.new[1], lengths, None, cache.block_table)
        lengths = (lengths + cache.added).clamp(max=cache.capacity)
    keys, values = _in_one_piece(cache)
    check(q, keys, values, DENSE)
    return by_products(q, keys, values, options, lengths)


def _in_one_piece(cache: Cache) -> tuple[Tensor, Tensor]:
    """K and V [batch, capacity, kv_heads, d_head], multiplied with their scales."""
    keys, values = cache.k, cache.v
    if cache.block_table is not None:
        pages = cache.block_table.long().clamp(0, keys.shape[0] - 1)  # it may end in anything
        keys, values = (
            t.view(torch.uint8)[pages].flatten(1, 2).view(t.dtype) for t in (keys, values)
        )
    if cache.scales is not None:
        shape = (keys.shape[0], 1, keys.shape[2], 1)
        keys, values = (
            t.float() * s.expand(shape[0], shape[2]).view(shape)
            for t, s in zip((keys, values), cache.scales, strict=True)
        )
    return keys, values


def _refuse(what: str) -> NoReturn:
    raise InvalidConfig(f"{what}: FlashAttention 2 takes this, fa-tune does not")


# Ways to compute ----------------------------------------------------------------------------


def _dense(
    q: Tensor, k: Tensor, v: Tensor, options: Options, wants_lse: bool
) -> tuple[Tensor, Tensor | None]:
    reason = _why_not_ours(q, k, v, options)
    if not reason:
        traits = options.traits
        try:
            found = attention(
                *(q, k, v),
                causal=traits.causal,
                bottom_right=traits.bottom_right and q.shape[1] != k.shape[1],
                softmax_scale=traits.scale,
                return_lse=wants_lse,
                window=(traits.window_left, traits.window_right),
                softcap=traits.softcap,
                alibi_slopes=traits.alibi_slopes,
                score_hook=traits.score_hook,
            )
        except NoUsableVariant as error:
            reason = _refused[q.shape[3], v.shape[3], q.dtype] = str(error)
        else:
            return found if wants_lse else (found, None)
    check(q, k, v, DENSE)
    check_kinds(q, k, v)
    if suits_flash2(q, v, options, (q.shape[1], k.shape[1])):
        tell("flash_attn_func", reason)
        return by_flash2(q, k, v, options)
    if (wide := _wider(q, v, options)) is not None:
        options, d_v = options.with_scale_of(q.shape[3]), v.shape[3]
        q, k, v = (_widened(t, wide) for t in (q, k, v))
        out, lse = _dense(q, k, v, options, wants_lse)
        return out[..., :d_v], lse
    _tell("flash_attn_func", reason, options)
    return by_products(q, k, v, options)


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, options: Options, lengths: Lengths, wants_lse: bool
) -> tuple[Tensor, Tensor | None]:
    reason = _why_not_ours(q, k, v, options)
    if not reason:
        try:
            return packed_attention(q, k, v, lengths, options.traits, return_lse=wants_lse)
        except NoUsableVariant as error:
            reason = _refused[q.shape[2], v.shape[2], q.dtype] = str(error)
    check(q, k, v, PACKED)
    check_kinds(q, k, v)
    if suits_flash2(q, v, options, (lengths.longest_q, lengths.longest_kv)):
        tell("flash_attn_varlen_func", reason)
        return by_flash2(q, k, v, options, lengths)
    if (wide := _wider(q, v, options)) is not None:
        options, d_v = options.with_scale_of(q.shape[2]), v.shape[2]
        q, k, v = (_widened(t, wide) for t in (q, k, v))
        out, lse = _varlen(q, k, v, options, lengths, wants_lse)
        return out[..., :d_v], lse
    _tell("flash_attn_varlen_func", reason, options)
    return _one_by_one(q, k, v, options, lengths)


def _tell(function: str, reason: str, options: Options) -> None:
    """That matrix products stand in.  Raises InvalidConfig for a score hook, which they lack."""
    if options.score_hook is not None:
        raise InvalidConfig(f"a score hook needs one of our kernels, and none takes this: {reason}")
    tell(function, reason)


def _why_not_ours(q: Tensor, k: Tensor, v: Tensor, options: Options) -> str:
    if options.dropout_p > 0:
        return "dropout"
    if not q.is_cuda:
        return f"the tensors are on the {q.device.type}"
    if q.dtype not in HALF:
        return f"{q.dtype} is neither fp16 nor bf16"
    if 0 in q.shape or 0 in k.shape:
        return "there is nothing to attend to"
    if any(t.shape[-1] % _WHOLE for t in (q, v)):
        return f"a head dimension that is no multiple of {_WHOLE}"
    if options.softcap > 0 and not MIN_SOFTCAP <= options.softcap <= MAX_SOFTCAP:
        return f"a soft cap of {options.softcap:g}"
    return _refused.get((q.shape[-1], v.shape[-1], q.dtype), "")


def _wider(q: Tensor, v: Tensor, options: Options) -> int | None:
    """The head dimension to which columns of zeros bring a problem that a kernel then computes."""
    wide = max(q.shape[-1], v.shape[-1])
    if not q.is_cuda or q.dtype not in HALF or wide > FLASH2_D_HEAD or 0 in (*q.shape, *v.shape):
        return None
    if options.dropout_p > 0 and not options.traits.masks_only:
        return None
    step = _WHOLE if options.dropout_p > 0 else _OURS
    wide += -wide % step
    return None if q.shape[-1] == v.shape[-1] == wide else wide


def _widened(tensor: Tensor, d_head: int) -> Tensor:
    return torch.nn.functional.pad(tensor, (0, d_head - tensor.shape[-1]))


def _one_by_one(
    q: Tensor, k: Tensor, v: Tensor, options: Options, lengths: Lengths
) -> tuple[Tensor, Tensor]:
    """Each sequence of a packed batch; it waits for the GPU, which has their lengths."""
    out = q.new_zeros((*q.shape[:2], v.shape[2]))
    lse = q.new_zeros(q.shape[1::-1], dtype=torch.float32)
    bounds_q, bounds_k = lengths.cum_q.tolist(), lengths.cum_kv.tolist()
    _check_bounds("q", bounds_q, q.shape[0], lengths.longest_q)
    _check_bounds("k", bounds_k, k.shape[0], lengths.longest_kv)
    if len(bounds_q) != len(bounds_k):
        raise InvalidConfig(
            f"cu_seqlens_q is of {len(bounds_q) - 1} sequences, cu_seqlens_k of {len(bounds_k) - 1}"
        )
    slopes = options.alibi_slopes
    for i in range(len(bounds_q) - 1):
        queries = slice(bounds_q[i], bounds_q[i + 1])
        keys = slice(bounds_k[i], bounds_k[i + 1])
        of_one = slopes[[i]] if slopes is not None and slopes.ndim == 2 else slopes
        found = _dense(
            *(q[None, queries], k[None, keys], v[None, keys]),
            replace(options, alibi_slopes=of_one),
            wants_lse=True,
        )
        out[queries] = found[0][0]
        lse[:, queries] = found[1][0]  # type: ignore[index]
    return out, lse


def _check_bounds(name: str, bounds: list[int], rows: int, longest: int) -> None:
    """Raise InvalidConfig for sequences that kernels would look for beyond a tensor, or not see
    the whole of."""
    ends = pairwise((0, *bounds, rows))
    if not bounds or any(begin > end for begin, end in ends):
        raise InvalidConfig(
            f"cu_seqlens_{name} must rise from 0 or more to {rows} or less, the rows of "
            f"{name.upper()}; it is {reprlib.repr(bounds)}"
        )
    if (most := max((end - begin for begin, end in pairwise(bounds)), default=0)) > longest:
        raise InvalidConfig(
            f"cu_seqlens_{name} has a sequence of {most} rows, max_seqlen_{name} is {longest}"
        )
