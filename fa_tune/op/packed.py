"""Packed batches on tensors: sequences of any lengths one after another, which only the device
knows."""

from __future__ import annotations

import torch
from torch import Tensor

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.workload import EXACT, FAST
from fa_tune.op import autograd, odd_heads, state  # noqa: F401  state has the implementation
from fa_tune.op.native import translated
from fa_tune.op.operands import Lengths
from fa_tune.op.traits import Traits, of_heads, wants_exact

_ops = torch.ops.fa_tune
_SCORED = (_ops.packed_fwd.default, _ops.packed_fwd_lse.default)
_HOOKED = (_ops.hooked_packed_fwd.default, _ops.hooked_packed_fwd_lse.default)


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths,
    traits: Traits,
    *,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of q [total_q, heads, d_head] to k and v [total_kv, kv_heads, d_head] and, where it
    is wanted, its log-sum-exp, fp32 [heads, total_q].  Masks are aligned with the end of each
    sequence.  Gradients flow as from `attention`.  Raises as `attention`."""
    traits = traits._replace(exact=wants_exact(q, EXACT if traits.exact else FAST))
    sink, slopes = traits.tensors
    if sink is not None:
        traits = traits._replace(sink=of_heads(sink, "sink"))
    if slopes is not None:
        traits = traits._replace(alibi_slopes=of_heads(slopes, "alibi_slopes"))
    wants_grad = any(t.requires_grad for t in (q, k, v)) or traits.wants_grad
    if traits.score_hook is not None:
        autograd.check_hook(traits.score_hook, wants_grad=wants_grad)
    records = wants_grad and torch.is_grad_enabled()
    records = records or autograd.is_transformed(q, k, v, *traits.tensors)
    if not (odd_heads.known and odd_heads.has(q, v)):
        try:
            return _run(q, k, v, lengths, traits, return_lse, records)
        except (RuntimeError, NoUsableVariant) as error:
            refusal = translated(error) if isinstance(error, RuntimeError) else error
            if not odd_heads.found(refusal, q, v):
                raise refusal from None
    wide = odd_heads.filled_up(q, k, v)
    traits = traits._replace(scale=odd_heads.scale(q, traits.scale))
    out, lse = _run(*wide, lengths, traits, return_lse, records)
    return out[..., : v.shape[-1]], lse


def _run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths,
    traits: Traits,
    return_lse: bool,
    records: bool,
) -> tuple[Tensor, Tensor | None]:
    hooked = traits.score_hook is not None
    forward, forward_lse = _HOOKED if hooked else _SCORED
    given = (q, k, v, *lengths, *(traits if hooked else traits.scored))
    if records:
        return autograd.attention(q, k, v, return_lse, *given[3:])
    if return_lse:
        out, lse = forward_lse(*given)
        return out, lse
    return forward(*given), None
