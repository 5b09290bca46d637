"""FlashAttention 2's function of a cache: by our kernels where they can, else by plain matrix
products."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fa_tune.build.native.call import strides_of_rows
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import DENSE
from fa_tune.op import cache_op, products
from fa_tune.op.autograd import is_transformed
from fa_tune.op.cache_launches import form_of
from fa_tune.op.fallback_warning import tell
from fa_tune.op.flash_attn import dense, why_not_ours
from fa_tune.op.flash_fallback import (
    EVERY,
    Options,
    Window,
    check,
    check_dimensions,
    check_floating,
    check_heads,
    check_integers,
    check_options,
    refuse,
)
from fa_tune.op.kv_cache import attend
from fa_tune.op.operands import E4M3, WHOLE_D_HEAD, Cache, check_new_places, pages_suit
from fa_tune.op.refusals import Asked, Refusals
from fa_tune.op.state import operators

_refusals = Refusals()


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
    for name, refused in (
        ("rotary embeddings", rotary_cos if rotary_cos is not None else rotary_sin),
        ("padding on the left", cache_leftpad),
        ("cache_batch_idx beside a block table", None if block_table is None else cache_batch_idx),
    ):
        if refused is not None:
            refuse(name)
    # Calls are remembered by it, so it has to be hashable.
    window: Any = tuple(window_size) if isinstance(window_size, list) else window_size
    options = Options(
        *(causal, softmax_scale, 0.0, window, softcap, alibi_slopes), lse=return_softmax_lse
    )
    new: Any = None if k is None and v is None else (k, v)
    scales: Any = None if k_descale is None and v_descale is None else (k_descale, v_descale)
    cache = Cache(k_cache, v_cache, cache_seqlens, new, block_table, scales)
    out, lse = _attend(q, cache, options, cache_batch_idx)
    return (out, lse) if return_softmax_lse else out


def _attend(
    given_q: Tensor, given: Cache, options: Options, batch_idx: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """out, and the log-sum-exp at least where it is wanted; checked, or as a call of the same form
    was."""
    form = None
    if is_transformed(given_q, given.k, given.v, *(given.new or ())):
        raise NotImplementedError("flash_attn_with_kvcache has no derivatives")
    if batch_idx is None and not cache_op.is_traced(given_q):
        form = form_of(given_q, given, options)
        found = None if form is None else operators().cache_launches.launch(form, given_q, given)
        if found is not None:
            return found
    q, cache = _checked(given_q, given, options, batch_idx)
    with torch.no_grad():
        if not isinstance(cache.lengths, Tensor):
            known = cache.k.shape[1] if cache.lengths is None else cache.lengths
            _check_length(known, cache)
            in_one_piece = cache.block_table is None and cache.k.dtype != E4M3
            if in_one_piece and (batch_idx is not None or not _appends(q, cache, options)):
                return dense(q, *_with_new(q, cache, known, batch_idx, options), options)
            lengths = torch.full((q.shape[0],), known, device=q.device, dtype=torch.int32)
            if not cache_op.is_traced(q):
                return _attend(given_q, given._replace(lengths=lengths), options, batch_idx)
            cache = cache._replace(lengths=lengths)
        if batch_idx is not None:  # each sequence is one page
            cache = cache._replace(block_table=batch_idx[:, None])
        if cache_op.is_traced(q):
            return cache_op.call(q, cache, options)
        # A launch with copies is not one that finds the tensors of a later call.
        return _cached(q, cache, options, form if q is given_q and cache.new is given.new else None)


def _checked(
    q: Tensor, cache: Cache, options: Options, batch_idx: Tensor | None
) -> tuple[Tensor, Cache]:
    """Q and new keys and values with whole rows, and both scales.  Raises InvalidConfig for what
    makes no call."""
    check_dimensions((q, cache.k, cache.v), DENSE)
    if cache.block_table is not None and cache.lengths is None:
        raise InvalidConfig("a block table needs cache_seqlens: pages may be partly filled")
    new = _new_keys(cache)
    if q.dtype == E4M3:
        raise InvalidConfig("Q must have elements of 16 bits or more; beside e4m3 caches, too")
    q = _with_rows(q)
    check_options(options, q.shape[0], q)
    if not (cache.lengths is None or isinstance(cache.lengths, int)):
        check_integers("cache_seqlens", cache.lengths)
    if cache.block_table is not None:
        check_integers("block_table", cache.block_table, 2)
    if batch_idx is not None:
        _check_batch_idx(batch_idx, q, len(cache.k))
    return q, cache._replace(new=new, scales=_scales(cache))


def _with_rows(tensor: Tensor) -> Tensor:
    """The same, copied where a row is not in one piece."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _appends(q: Tensor, cache: Cache, options: Options) -> bool:
    """Whether a kernel writes new keys and values to the caches on its way, which is faster than
    to do so before a kernel that is told the lengths."""
    traced = cache.new is None or cache_op.is_traced(q)
    return not traced and not _why_products(q, cache, options)


def _new_keys(cache: Cache) -> tuple[Tensor, Tensor] | None:
    """Those with whole rows.  Raises InvalidConfig for new keys without values, or without a
    place."""
    if cache.new is None:
        return None
    if any(given is None for given in cache.new):
        raise InvalidConfig("k and v are appended together: give both or neither")
    for name, given in zip("kv", cache.new, strict=True):
        if not isinstance(given, Tensor) or given.ndim != 4:
            text = [*given.shape] if isinstance(given, Tensor) else type(given).__name__
            raise InvalidConfig(f"{name} must be a tensor {DENSE}, not {text}")
    if cache.lengths is None:
        raise InvalidConfig("k and v have no place in the cache without cache_seqlens")
    k, v = cache.new
    whole = (_with_rows(k), _with_rows(v))
    return cache.new if whole[0] is k and whole[1] is v else whole


def _with_new(
    q: Tensor, cache: Cache, length: int, batch_idx: Tensor | None, options: Options
) -> tuple[Tensor, Tensor]:
    """The first `length` keys and values of each sequence of the batch and what is new, which is
    written behind them.  Raises InvalidConfig before anything is written."""
    caches = (cache.k, cache.v)
    keys, values = (one[:, : length + cache.added] for one in caches)
    if cache.new is not None:
        _check_read(q, keys, values, batch_idx, options)
        check_new_places(cache.new, q, caches)
        for one, given in zip(caches, cache.new, strict=True):
            _append(one, given, length, batch_idx, None)
    if batch_idx is None:
        return keys, values
    rows = batch_idx.long()
    return keys[rows], values[rows]


def _check_read(
    q: Tensor, keys: Tensor, values: Tensor, batch_idx: Tensor | None, options: Options
) -> None:
    """Raise InvalidConfig for keys and values that make no problem with the queries; those of
    sequences `batch_idx` are read from a copy."""
    read = [q, keys, values]
    if batch_idx is not None:
        keys, values = (t[:1].expand(q.shape[0], -1, -1, -1) for t in (keys, values))
        read = [q]
    check(q, keys, values, DENSE)
    if torch.compiler.is_compiling():  # tensors have no addresses yet
        return
    if not (why_not_ours(q, keys, values, options) or q.shape[3] % WHOLE_D_HEAD):
        for tensor, name in zip(read, ("Q", "the cache of K", "the cache of V"), strict=False):
            if tensor.stride(-1) == 1:  # others are copied
                strides_of_rows(name, tensor)


def _check_batch_idx(batch_idx: Tensor, q: Tensor, sequences: int) -> None:
    """Raise InvalidConfig for what does not say which of so many sequences of a cache each of the
    batch is.  What lies on a GPU is taken on trust, since looking would wait for it."""
    check_integers("cache_batch_idx", batch_idx)
    if len(batch_idx) != q.shape[0]:
        raise InvalidConfig(f"cache_batch_idx must be [{q.shape[0]}], as Q, not [{len(batch_idx)}]")
    if batch_idx.device != q.device:
        raise InvalidConfig(f"cache_batch_idx must be on {q.device}, as Q, not {batch_idx.device}")
    if batch_idx.device.type != "cpu" or cache_op.is_traced(q):
        return
    if bool(((batch_idx < 0) | (batch_idx >= sequences)).any()):
        raise InvalidConfig(
            f"cache_batch_idx must be from 0 to {sequences - 1}, as the cache has {sequences} "
            f"sequences; it is {batch_idx.tolist()}"
        )


def _check_length(length: int, cache: Cache) -> None:
    """Raise InvalidConfig for keys that a cache has no room for."""
    if not 0 <= length <= cache.capacity - cache.added:
        raise InvalidConfig(
            f"cache_seqlens {length} and {cache.added} new keys: the cache has room for "
            f"{cache.capacity}"
        )


def _append(
    cache: Tensor,
    new: Tensor,
    length: int | Tensor,
    batch_idx: Tensor | None,
    block_table: Tensor | None,
) -> None:
    """What has no place is dropped, as our kernels do: the GPU alone may know the lengths."""
    each = torch.arange(new.shape[0], device=cache.device)
    rows = each if batch_idx is None else batch_idx
    start = length if isinstance(length, Tensor) else torch.full_like(rows, length)
    if cache.dtype == E4M3:  # whose numbers torch does not place
        cache, new = cache.view(torch.uint8), new.view(torch.uint8)
    size = cache.shape[1]
    capacity = size if block_table is None else size * block_table.shape[1]
    if not capacity or not new.shape[1]:
        return
    start, count = start.long()[:, None], new.shape[1]
    # Those without a place repeat the nearest one that has, or what is in the nearest place.
    has_place = (start < capacity) & (start + count > 0)
    which = torch.arange(count, device=cache.device).minimum(capacity - 1 - start).maximum(-start)
    which = which.clamp(0, count - 1)
    places = (start + which).clamp(0, capacity - 1)
    if block_table is None:
        where = (rows.long()[:, None], places)
    else:
        where = (block_table.long().gather(1, places // size), places % size)
    given = new.to(cache.dtype)[each[:, None], which]
    cache[where] = torch.where(has_place[..., None, None], given, cache[where])


def _scales(cache: Cache) -> tuple[Tensor, Tensor] | None:
    """Both, for a cache that has them.  Raises InvalidConfig for what is no tensor, and beside a
    cache of another type."""
    if cache.scales is None:
        return None
    for name, given in zip(("k_descale", "v_descale"), cache.scales, strict=True):
        if given is not None and not isinstance(given, Tensor):
            raise InvalidConfig(f"{name} must be a torch tensor, not {type(given).__name__}")
    if cache.k.dtype != E4M3:
        raise InvalidConfig(f"k_descale and v_descale are of caches of {E4M3}, not {cache.k.dtype}")
    one = torch.ones((), device=cache.k.device)
    k, v = (one if given is None else given for given in cache.scales)
    return k, v


def _why_no_kernel(q: Tensor, cache: Cache, options: Options) -> str:
    """Why our kernels do not attend to a cache, in a few words; "" if they do."""
    kinds = {t.dtype for t in (cache.k, cache.v, *(cache.new or ()))}
    alike = cache.k.shape[:3] == cache.v.shape[:3] and len(kinds) == 1
    requested = {
        "a cache without room": not cache.capacity,
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
    return next((name for name, wanted in requested.items() if wanted), "")


def _why_products(q: Tensor, cache: Cache, options: Options) -> str:
    """Why matrix products attend to a cache, in a few words; "" if our kernels do."""
    return (
        why_not_ours(q, cache.k, cache.v, options)
        or _why_no_kernel(q, cache, options)
        or _refusals.reason(Asked(q, cache.k, cache.v, options.traits, options.lse, "cache"))
    )


def _cached(
    q: Tensor, cache: Cache, options: Options, form: Hashable | None = None
) -> tuple[Tensor, Tensor | None]:
    """`form` is that of the call if later ones may have the same launch."""
    remember = None if form is None else partial(operators().cache_launches.remember, form)
    found: tuple[Tensor, Tensor | None]
    reason = _why_products(q, cache, options)
    if not reason:
        traits = options.traits
        ours = partial(attend, q, cache, traits, return_lse=options.lse, remember=remember)
        asked = Asked(q, cache.k, cache.v, traits, options.lse, "cache")
        found, reason = _refusals.attempt(ours, asked)
        if not reason:
            return found
    cache.check_places(q)
    check_heads(q, cache.k)
    check_floating(q, cache.k, cache.v)
    if E4M3 in (cache.k.dtype, cache.v.dtype):  # which torch does not convert in place
        cache.check_types(q)
    cache = cache.as_read(q)
    tell("flash_attn_with_kvcache", reason)
    lengths = cache.lengths
    if cache.new is not None:
        _append(cache.k, cache.new[0], lengths, None, cache.block_table)
        _append(cache.v, cache.new[1], lengths, None, cache.block_table)
        lengths = (lengths + cache.added).clamp(max=cache.capacity)
    return products.forward(q, *_in_one_piece(cache), options.traits, keys=lengths)


def _in_one_piece(cache: Cache) -> tuple[Tensor, Tensor]:
    """K and V [batch, capacity, kv_heads, d_head] of a cache `as_read`, multiplied with their
    scales."""
    keys, values = cache.k, cache.v
    if cache.block_table is not None:
        pages = cache.block_table.long().clamp(0, keys.shape[0] - 1)  # it may end in anything
        keys, values = (
            t.view(torch.uint8)[pages].flatten(1, 2).view(t.dtype) for t in (keys, values)
        )
    if cache.scales is not None:
        keys, values = (
            t.float() * s[:, None, :, None]
            for t, s in zip((keys, values), cache.scales, strict=True)
        )
    return keys, values


cache_op.define(_cached)
