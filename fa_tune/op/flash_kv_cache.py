"""FlashAttention 2's function of a cache: by our kernels where they can, else by plain matrix
products."""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fa_tune.build.native.call import strides_of_rows
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.op import cache_op, products
from fa_tune.op.autograd import is_transformed
from fa_tune.op.cache_launches import Given, form_of
from fa_tune.op.fallback_warning import tell
from fa_tune.op.flash_attn import dense, why_not_ours
from fa_tune.op.flash_fallback import (
    DENSE,
    EVERY,
    Options,
    Window,
    check,
    check_dimensions,
    check_floating,
    check_heads,
    check_integers,
    check_kinds,
    check_options,
    refuse,
)
from fa_tune.op.kv_cache import E4M3, Cache, attend, check_new_places, pages_suit
from fa_tune.op.operands import WHOLE_D_HEAD
from fa_tune.op.refusals import Refusals
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
        ("cache_batch_idx beside a block table", cache_batch_idx if _paged(block_table) else None),
    ):
        if refused is not None:
            refuse(name)
    given = Given(q, k_cache, v_cache, k, v, cache_seqlens, block_table, k_descale, v_descale)
    # Calls are remembered by it, so it has to be hashable.
    window: Any = tuple(window_size) if isinstance(window_size, list) else window_size
    requested = Requested(softmax_scale, causal, window, softcap, return_softmax_lse)
    out, lse = _attend(given, requested, cache_batch_idx, alibi_slopes)
    return (out, lse) if return_softmax_lse else out


class Requested(NamedTuple):
    """What a call asks for beside tensors, as it is given."""

    softmax_scale: float | None
    causal: bool
    window_size: Window
    softcap: float
    lse: bool


def _attend(
    given: Given, requested: Requested, batch_idx: Tensor | None, slopes: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """out, and the log-sum-exp at least where it is wanted; checked, or as a call of the same form
    was."""
    form = None
    if is_transformed(given.q, given.k_cache, given.v_cache, given.new_k, given.new_v):
        raise NotImplementedError("flash_attn_with_kvcache has no derivatives")
    if batch_idx is None and slopes is None and not cache_op.is_traced(given.q):
        form = form_of(given, requested)
        found = None if form is None else operators().cache_launches.launch(form, given)
        if found is not None:
            return found
    q, new, options = _checked(given, requested, batch_idx, slopes)
    lengths, caches = given.lengths, (given.k_cache, given.v_cache)
    with torch.no_grad():
        if not isinstance(lengths, Tensor):
            known = caches[0].shape[1] if lengths is None else lengths
            _check_length(known, new, caches, given.table)
            in_one_piece = not _paged(given.table) and caches[0].dtype != E4M3
            if in_one_piece and (
                batch_idx is not None or not _appends(q, caches, new, options, requested.lse)
            ):
                read = _with_new(new, q, caches, known, batch_idx, options)
                return dense(q, *read, options, requested.lse)
            lengths = torch.full((q.shape[0],), known, device=q.device, dtype=torch.int32)
            if not cache_op.is_traced(q):
                return _attend(given._replace(lengths=lengths), requested, batch_idx, slopes)
        # Each sequence is one page.
        table = given.table if batch_idx is None else batch_idx[:, None]
        scales = _scales(caches[0], given.k_scale, given.v_scale)
        cache = Cache(*caches, lengths, new, table, scales)
        if cache_op.is_traced(q):
            return cache_op.call(q, cache, options, requested.lse)
        # A launch with copies is not one that finds the tensors of a later call.
        copied = q is not given.q or (new is not None and _are_copies(new, given))
        return _cached(q, cache, options, requested.lse, None if copied else form)


def _checked(
    given: Given, requested: Requested, batch_idx: Tensor | None, slopes: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor] | None, Options]:
    """Q with whole rows, the new keys and values, and the options.  Raises InvalidConfig for what
    makes no call."""
    q, k_cache = given.q, given.k_cache
    check_dimensions((q, k_cache, given.v_cache), DENSE)
    if _paged(given.table) and given.lengths is None:
        raise InvalidConfig("a block table needs cache_seqlens: pages may be partly filled")
    new = _new_keys(given.new_k, given.new_v, given.lengths)
    if q.dtype == E4M3:
        raise InvalidConfig("Q must have elements of 16 bits or more; beside e4m3 caches, too")
    q = _with_rows(q)
    options = Options(
        requested.causal,
        requested.softmax_scale,
        0.0,
        requested.window_size,
        requested.softcap,
        slopes,
    )
    check_options(options, q.shape[0], q)
    if not (given.lengths is None or isinstance(given.lengths, int)):
        check_integers("cache_seqlens", given.lengths)
    if given.table is not None:
        check_integers("block_table", given.table, 2)
    if batch_idx is not None:
        _check_batch_idx(batch_idx, q, len(k_cache))
    if k_cache.dtype != E4M3 and not (given.k_scale is None and given.v_scale is None):
        raise InvalidConfig(f"k_descale and v_descale are of caches of {E4M3}, not {k_cache.dtype}")
    return q, new, options


def _with_rows(tensor: Tensor) -> Tensor:
    """The same, copied where a row is not in one piece."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _appends(
    q: Tensor,
    caches: tuple[Tensor, Tensor],
    new: tuple[Tensor, Tensor] | None,
    options: Options,
    wants_lse: bool,
) -> bool:
    """Whether a kernel writes new keys and values to the caches on its way, which is faster than
    to do so before a kernel that is told the lengths."""
    if new is None or cache_op.is_traced(q):
        return False
    cache = Cache(*caches, lengths=q, new=new)  # whatever the lengths
    return not _why_products(q, cache, options, wants_lse)


def _new_keys(
    k: Tensor | None, v: Tensor | None, lengths: int | Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Raise InvalidConfig for new keys without values, or without a place."""
    if (k is None) != (v is None):
        raise InvalidConfig("k and v are appended together: give both or neither")
    if k is None or v is None:
        return None
    for name, given in (("k", k), ("v", v)):
        if not isinstance(given, Tensor) or given.ndim != 4:
            text = [*given.shape] if isinstance(given, Tensor) else type(given).__name__
            raise InvalidConfig(f"{name} must be a tensor {DENSE}, not {text}")
    if lengths is None:
        raise InvalidConfig("k and v have no place in the cache without cache_seqlens")
    return _with_rows(k), _with_rows(v)


def _are_copies(new: tuple[Tensor, Tensor], given: Given) -> bool:
    """Whether new keys or values are not the tensors that were given."""
    return new[0] is not given.new_k or new[1] is not given.new_v


def _with_new(
    new: tuple[Tensor, Tensor] | None,
    q: Tensor,
    caches: tuple[Tensor, Tensor],
    length: int,
    batch_idx: Tensor | None,
    options: Options,
) -> tuple[Tensor, Tensor]:
    """The first `length` keys and values of each sequence of the batch and what is new, which is
    written behind them.  Raises InvalidConfig before anything is written."""
    seen = length if new is None else length + new[0].shape[1]
    keys, values = (cache[:, :seen] for cache in caches)
    if new is not None:
        _check_read(q, keys, values, batch_idx, options)
        check_new_places(new, q, caches)
        for cache, given in zip(caches, new, strict=True):
            _append(cache, given, length, batch_idx, None)
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
    check_kinds(q, keys, values)
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


def _check_length(
    length: int,
    new: tuple[Tensor, Tensor] | None,
    caches: tuple[Tensor, Tensor],
    block_table: Tensor | None,
) -> None:
    """Raise InvalidConfig for keys that a cache has no room for."""
    room = min(cache.shape[1] for cache in caches)
    capacity = room * (1 if block_table is None else block_table.shape[-1])
    added = 0 if new is None else new[0].shape[1]
    if not 0 <= length <= capacity - added:
        raise InvalidConfig(
            f"cache_seqlens {length} and {added} new keys: the cache has room for {capacity}"
        )


def _paged(block_table: Tensor | None) -> bool:
    return block_table is not None


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


def _scales(
    k_cache: Tensor, k_descale: Tensor | None, v_descale: Tensor | None
) -> tuple[Tensor, Tensor] | None:
    """Both, for a cache that has them.  Raises InvalidConfig for what is no tensor."""
    for name, given in (("k_descale", k_descale), ("v_descale", v_descale)):
        if given is not None and not isinstance(given, Tensor):
            raise InvalidConfig(f"{name} must be a torch tensor, not {type(given).__name__}")
    if k_cache.dtype != E4M3 or (k_descale is None and v_descale is None):
        return None
    one = torch.ones((), device=k_cache.device)
    return one if k_descale is None else k_descale, one if v_descale is None else v_descale


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


def _why_products(q: Tensor, cache: Cache, options: Options, wants_lse: bool) -> str:
    """Why matrix products attend to a cache, in a few words; "" if our kernels do."""
    problem = (q, cache.k, cache.v, options.traits)
    return (
        why_not_ours(q, cache.k, cache.v, options)
        or _why_no_kernel(q, cache, options)
        or _refusals.reason(*problem, lse=wants_lse, of="cache")
    )


def _cached(
    q: Tensor, cache: Cache, options: Options, wants_lse: bool, form: Hashable | None = None
) -> tuple[Tensor, Tensor | None]:
    """`form` is that of the call if later ones may have the same launch."""
    remember = None if form is None else partial(operators().cache_launches.remember, form)
    reason = _why_products(q, cache, options, wants_lse)
    if not reason:
        try:
            return attend(q, cache, options.traits, return_lse=wants_lse, remember=remember)
        except NoUsableVariant as error:
            reason = str(error)
            problem = (q, cache.k, cache.v, options.traits)
            _refusals.remember(*problem, reason, lse=wants_lse, of="cache")
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
