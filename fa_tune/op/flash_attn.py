"""FlashAttention 2's functions: by our kernels where they can, by torch's FlashAttention 2 where it
can, else by plain matrix products.

Causal masks are aligned bottom-right.  Dropout is torch's, or with ALiBi and softcap matrix
products, which need memory for all scores.  Head dimensions that no kernel has are filled up with
columns of zeros.
"""

from __future__ import annotations

import reprlib
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import DENSE, PACKED
from fa_tune.core.workload import MAX_SOFTCAP, MIN_SOFTCAP
from fa_tune.op import products, refusals
from fa_tune.op.api import attention
from fa_tune.op.fallback_warning import tell
from fa_tune.op.flash_fallback import (
    EVERY,
    Options,
    Window,
    by_flash2,
    check,
    check_dimensions,
    check_integers,
    check_options,
    refuse,
    suits_flash2,
)
from fa_tune.op.operands import Lengths
from fa_tune.op.packed import packed_attention
from fa_tune.op.precision import without_autocast
from fa_tune.op.refusals import Asked, Refusals

_refusals = Refusals()


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
        *(causal, softmax_scale, dropout_p, window_size, softcap, alibi_slopes, score_hook),
        lse=return_attn_probs,
    )
    check_dimensions((q, k, v), DENSE)
    check_options(options, q.shape[0], q)
    out, lse = dense(q, k, v, options)
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
        refuse("a block table")
    options = Options(
        *(causal, softmax_scale, dropout_p, window_size, softcap, alibi_slopes, score_hook),
        lse=return_attn_probs,
    )
    check_dimensions((q, k, v), PACKED)
    for name, bounds in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        check_integers(name, bounds)
    check_options(options, len(cu_seqlens_q) - 1, q)
    lengths = Lengths(cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    out, lse = _varlen(q, k, v, options, lengths)
    return (out, lse, None) if return_attn_probs else out


# Ways to compute ----------------------------------------------------------------------------


def dense(q: Tensor, k: Tensor, v: Tensor, options: Options) -> tuple[Tensor, Tensor | None]:
    """out, and the log-sum-exp at least where it is wanted."""
    traits = options.traits
    reason = why_not_ours(q, k, v, options)
    if not reason:
        function = attention
        if torch.is_autocast_enabled("cuda"):  # which means nothing to FlashAttention
            function = without_autocast(attention)
        own = traits._replace(bottom_right=traits.bottom_right and q.shape[1] != k.shape[1])
        ours = partial(function, q, k, v, return_lse=options.lse, **own.of_attention)
        found, reason = _refusals.attempt(ours, Asked(q, k, v, traits, options.lse))
        if not reason:
            return found if options.lse else (found, None)
    check(q, k, v, DENSE)
    if suits_flash2(q, v, options, q.shape[0], (q.shape[1], k.shape[1])):
        tell("flash_attn_func", reason)
        return by_flash2(q, k, v, options)
    _tell("flash_attn_func", reason, options)
    return products.forward(q, k, v, traits, dropout_p=options.dropout_p)


def _varlen(
    q: Tensor, k: Tensor, v: Tensor, options: Options, lengths: Lengths
) -> tuple[Tensor, Tensor | None]:
    found: tuple[Tensor, Tensor | None]
    traits = options.traits
    reason = why_not_ours(q, k, v, options)
    if not reason:
        ours = partial(packed_attention, q, k, v, lengths, traits, return_lse=options.lse)
        asked = Asked(q, k, v, traits, options.lse, "packed")
        found, reason = _refusals.attempt(ours, asked)
        if not reason:
            return found
    check(q, k, v, PACKED)
    batch, longest = len(lengths.cum_q) - 1, (lengths.longest_q, lengths.longest_kv)
    if suits_flash2(q, v, options, batch, longest):
        tell("flash_attn_varlen_func", reason)
        return by_flash2(q, k, v, options, lengths)
    _tell("flash_attn_varlen_func", reason, options)
    _check_lengths(lengths, q, k)
    return products.packed_forward(q, k, v, lengths, traits, dropout_p=options.dropout_p)


def _tell(function: str, reason: str, options: Options) -> None:
    """Warn that matrix products stand in.  Raises InvalidConfig for a score hook, which they
    lack."""
    if options.score_hook is not None:
        raise InvalidConfig(f"a score hook needs one of our kernels, and none takes this: {reason}")
    tell(function, reason)


def why_not_ours(q: Tensor, k: Tensor, v: Tensor, options: Options) -> str:
    """Why our kernels do not compute it, in a few words; "" if they may."""
    if q.is_meta:  # which has shapes alone
        return ""
    if not q.is_cuda:
        return f"the tensors are on the {q.device.type}"
    if options.softcap > 0 and not MIN_SOFTCAP <= options.softcap <= MAX_SOFTCAP:
        return f"a soft cap of {options.softcap:g}"
    return refusals.why_not_ours(q, k, options.scale, options.dropout_p)


def _check_lengths(lengths: Lengths, q: Tensor, k: Tensor) -> None:
    """Raise InvalidConfig for lengths that are not those of the tensors."""
    of_q, of_k = lengths.cum_q.tolist(), lengths.cum_kv.tolist()
    _check_bounds("q", of_q, q.shape[0], lengths.longest_q)
    _check_bounds("k", of_k, k.shape[0], lengths.longest_kv)
    if len(of_q) != len(of_k):
        raise InvalidConfig(
            f"cu_seqlens_q is of {len(of_q) - 1} sequences, cu_seqlens_k of {len(of_k) - 1}"
        )


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
