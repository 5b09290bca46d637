"""Attention with gradients: functions around the operators, entered where an input wants one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fa_tune.core import hooks
from fa_tune.op import library  # noqa: F401  defines the operators
from fa_tune.op.traits import PLAIN_FIELDS, Traits

_fwd_lse = torch.ops.fa_tune.fwd_lse.default
_scored_fwd_lse = torch.ops.fa_tune.scored_fwd_lse.default
_hooked_fwd_lse = torch.ops.fa_tune.hooked_fwd_lse.default
_bwd = torch.ops.fa_tune.bwd.default
_packed_fwd_lse = torch.ops.fa_tune.packed_fwd_lse.default
_hooked_packed_fwd_lse = torch.ops.fa_tune.hooked_packed_fwd_lse.default
_packed_bwd = torch.ops.fa_tune.packed_bwd.default

# By how many traits are given.
_FORWARD = {
    PLAIN_FIELDS: _fwd_lse,
    len(Traits._fields) - 1: _scored_fwd_lse,
    len(Traits._fields): _hooked_fwd_lse,
}


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """out and the log-sum-exp, of which only out has a gradient."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *traits: Any) -> tuple[Tensor, Tensor]:
        """The operator's forward pass, with the log-sum-exp; `traits`: the plain ones, all, or
        a score hook as well."""
        forward = _FORWARD[len(traits)]
        out, lse = forward(q, k, v, *traits)
        _keep(ctx, (q, k, v, out, lse), traits)
        ctx.mark_non_differentiable(lse)
        return out, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Any, ...]:
        """Gradients of q, k, v and the traits that are tensors."""
        done, traits = _kept(ctx)
        dq, dk, dv, d_slopes = _bwd(grad_out, *done, *traits)
        d_sink = _of_sink(grad_out, done[3], done[4], traits.sink)
        return dq, dk, dv, *_of_traits(d_sink, d_slopes, traits)[: ctx.n_traits]


class PackedAttention(torch.autograd.Function):  # type: ignore[misc]
    """The same of a packed batch; the lengths come before the traits."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
        """The operator's forward pass, with the log-sum-exp; `others`: the lengths, and all traits
        or a score hook as well."""
        cum_q, cum_kv, longest_q, longest_kv, *traits = others
        hooked = len(traits) == len(Traits._fields)
        forward = _hooked_packed_fwd_lse if hooked else _packed_fwd_lse
        out, lse = forward(q, k, v, *others)
        _keep(ctx, (q, k, v, out, lse, cum_q, cum_kv), tuple(traits))
        ctx.mark_non_differentiable(lse)
        ctx.longest = (longest_q, longest_kv)
        return out, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Any, ...]:
        """Gradients of q, k, v and the traits that are tensors."""
        (*done, cum_q, cum_kv), traits = _kept(ctx)
        lengths = (cum_q, cum_kv, *ctx.longest)
        dq, dk, dv, d_slopes = _packed_bwd(grad_out, *done, *lengths, *traits)
        d_sink = _of_sink(grad_out, done[3], done[4], traits.sink)
        of_traits = _of_traits(d_sink, d_slopes, traits)[: ctx.n_traits]
        return dq, dk, dv, None, None, None, None, *of_traits


def check_hook(score_hook: object, *, wants_grad: bool) -> None:
    """Raise InvalidConfig, before the forward pass, for what is no score hook and for one without
    the function in torch that gradients need."""
    if torch.compiler.is_compiling() and not hooks.is_registered(score_hook):
        return  # torch would bury the message of what is traced; the operator refuses when it runs
    if wants_grad and torch.is_grad_enabled():
        hooks.twin_of(score_hook)
    else:
        hooks.hook_of(score_hook)


def distinct(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same, no two of them one object: torch's compiler takes none twice."""
    return tuple(
        t.view_as(t) if any(t is before for before in tensors[:i]) else t
        for i, t in enumerate(tensors)
    )


def _keep(ctx: Any, tensors: tuple[Tensor, ...], traits: tuple[Any, ...]) -> None:
    """For the backward pass; tensors among traits must be saved as such."""
    ctx.n_traits = len(traits)
    given = Traits(*traits)
    ctx.save_for_backward(*tensors, given.sink, given.alibi_slopes)
    ctx.traits = tuple(given._replace(sink=None, alibi_slopes=None))


def _kept(ctx: Any) -> tuple[tuple[Tensor, ...], Traits]:
    *tensors, sink, slopes = ctx.saved_tensors
    traits = Traits(*ctx.traits)
    return tuple(tensors), traits._replace(sink=sink, alibi_slopes=slopes)


def _of_sink(grad_out: Tensor, out: Tensor, lse: Tensor, sink: Tensor | None) -> Tensor | None:
    """A sink's weight in a row takes from what the row's keys get; its own value is 0.  Works on
    [batch, rows, heads, d_v] and on [rows, heads, d_v]."""
    if sink is None:
        return None
    kept = (grad_out.float() * out.float()).sum(-1)  # [..., rows, heads]
    weights = (sink[:, None] - lse).exp().masked_fill(lse.isneginf(), 0.0).transpose(-1, -2)
    return -(weights * kept).flatten(0, -2).sum(0)


def _of_traits(d_sink: Tensor | None, d_slopes: Tensor, traits: Traits) -> tuple[Any, ...]:
    slopes = None if traits.alibi_slopes is None else d_slopes
    return tuple(Traits(None, None, sink=d_sink, alibi_slopes=slopes))  # type: ignore[arg-type]
