"""Packed batches on tensors: sequences of any lengths one after another, which only the device
knows."""

from __future__ import annotations

import torch
from torch import Tensor

from fa_tune.op import autograd, state  # noqa: F401  state has the operators' implementation
from fa_tune.op.done import Lengths
from fa_tune.op.native import translated
from fa_tune.op.traits import Traits, of_heads

_fwd = torch.ops.fa_tune.packed_fwd.default
_fwd_lse = torch.ops.fa_tune.packed_fwd_lse.default


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
    sink, slopes = traits.tensors
    if sink is not None:
        traits = traits._replace(sink=of_heads(sink, "sink"))
    if slopes is not None:
        traits = traits._replace(alibi_slopes=of_heads(slopes, "alibi_slopes"))
    wants_grad = any(t.requires_grad for t in (q, k, v)) or traits.wants_grad
    try:
        if wants_grad and torch.is_grad_enabled():
            three = autograd.distinct(q, k, v)
            out, lse = autograd.PackedAttention.apply(*three, *lengths, *traits.scored)
            return out, lse
        if return_lse:
            out, lse = _fwd_lse(q, k, v, *lengths, *traits.scored)
            return out, lse
        return _fwd(q, k, v, *lengths, *traits.scored), None
    except RuntimeError as error:
        raise translated(error) from None
