"""Attention with gradients: functions around the operators, entered where an input wants one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from fa_tune.core import hooks
from fa_tune.op import products
from fa_tune.op.library import N_LENGTHS  # whose import defines the operators
from fa_tune.op.operands import Done, Lengths
from fa_tune.op.traits import PLAIN_FIELDS, Traits

_ops = torch.ops.fa_tune
innermost = torch._C._functorch.peek_interpreter_stack  # function of torch.func
_ALL = len(Traits._fields)
# By how many lengths and traits are given.
_FORWARD = {
    PLAIN_FIELDS: _ops.fwd_lse.default,
    _ALL - 1: _ops.scored_fwd_lse.default,
    _ALL: _ops.hooked_fwd_lse.default,
    N_LENGTHS + _ALL - 1: _ops.packed_fwd_lse.default,
    N_LENGTHS + _ALL: _ops.hooked_packed_fwd_lse.default,
}


def attention(
    q: Tensor, k: Tensor, v: Tensor, wants_lse: bool, *others: Any
) -> tuple[Tensor, Tensor]:
    """out and the log-sum-exp, which has gradients if it is wanted.  `others`: the lengths of a
    packed batch, and the plain traits, all, or a score hook as well.

    Forward-mode derivatives are those of `products.forward`."""
    if forward_ad._current_level < 0 or not _is_dual(q, k, v, *_parted(others)[1].tensors):
        kind = _Transformed if torch.compiler.is_compiling() or _has_wrappers() else _Attention
        out, lse = kind.apply(*_distinct(q, k, v, wants_lse, *others))
        return out, lse
    lengths, traits = _parted(others)
    if lengths:
        return products.packed_forward(q, k, v, Lengths(*lengths), traits)
    return products.forward(q, k, v, traits)


def is_transformed(*tensors: Tensor | None) -> bool:
    """Whether a derivative may be taken that does not show in `requires_grad`: in forward mode, or
    by a function of torch.func.  False where `innermost()` is None and no level is entered."""
    return _is_dual(*tensors) if forward_ad._current_level >= 0 else _has_wrappers()


def _is_dual(*tensors: Tensor | None) -> bool:
    if forward_ad._current_level < 0:
        return False
    unpack = forward_ad.unpack_dual
    return _has_wrappers() or any(t is not None and unpack(t).tangent is not None for t in tensors)


def _has_wrappers() -> bool:
    """Whether tensors may have others in them, of a function of torch.func."""
    return innermost() is not None and not torch.compiler.is_compiling()


def _results(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    out, lse = _FORWARD[len(others)](q, k, v, *others)
    return out, lse


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """What the backward pass needs."""
    q, k, v, wants_lse, *others = inputs
    lengths, traits = _parted(others)
    # Tensors must be saved as such.
    ctx.save_for_backward(q, k, v, *output, *traits.tensors, *lengths[:2])
    ctx.traits = tuple(traits._replace(sink=None, alibi_slopes=None))
    ctx.longest = lengths[2:]
    ctx.n_traits = len(others) - len(lengths)
    ctx.wants_lse = wants_lse
    if not wants_lse:
        ctx.mark_non_differentiable(output[1])
    elif not torch.compiler.is_compiling():
        ctx.set_materialize_grads(False)  # with the log-sum-exp's a pass costs more


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """The function in one piece: in two, torch binds the signature anew at every call, which
    takes 30 us."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _results(*inputs[:3], *inputs[4:])
        _keep(ctx, inputs, output)
        return output

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Any, ...]:
        q, k, v, out, lse, sink, slopes, *starts = ctx.saved_tensors
        traits = Traits(*ctx.traits)._replace(sink=sink, alibi_slopes=slopes)
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        done = Done(grad_out, q, k, v, out, lse, grad_lse if ctx.wants_lse else None)
        lengths = (*starts, *ctx.longest)
        bwd = _ops.packed_bwd.default if starts else _ops.bwd.default
        at = 4 + len(lengths) + Traits._fields.index("alibi_slopes")
        slopes_grad = slopes is not None and ctx.needs_input_grad[at]
        dq, dk, dv, d_slopes = bwd(*done, *lengths, *traits, slopes_grad)
        of_traits = Traits(
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            sink=_of_sink(done, sink),
            alibi_slopes=d_slopes if slopes_grad else None,
            exact=None,  # type: ignore[arg-type]
        )
        return dq, dk, dv, None, *(None,) * len(lengths), *of_traits[: ctx.n_traits]


class _Transformed(_Attention):
    """The function in two pieces, as torch.func and torch's compiler take it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        q: Tensor, k: Tensor, v: Tensor, wants_lse: bool, *others: Any
    ) -> tuple[Tensor, Tensor]:
        return _results(q, k, v, *others)

    setup_context = staticmethod(_keep)


def _parted(others: Any) -> tuple[tuple[Any, ...], Traits]:
    """The lengths, if there are any, and the traits."""
    n_lengths = N_LENGTHS if len(others) > _ALL else 0
    return tuple(others[:n_lengths]), Traits(*others[n_lengths:])


def check_hook(score_hook: object, *, wants_grad: bool) -> None:
    """Raise InvalidConfig, before the forward pass, for what is no score hook and for one without
    the function in torch, or the derivative beside it, that gradients need."""
    if torch.compiler.is_compiling() and not hooks.is_registered(score_hook):
        return  # torch would bury the message of what is traced; the operator refuses when it runs
    found = hooks.hook_of(score_hook)
    if wants_grad and torch.is_grad_enabled() and not found.has_derivative:
        hooks.twin_of(score_hook)


def _distinct(*given: Any) -> tuple[Any, ...]:
    """The same, no two of the tensors one object: torch's compiler takes none twice, nor, in some
    releases, a tensor's identity."""
    if not torch.compiler.is_compiling():
        return given
    return tuple(
        t.view_as(t) if isinstance(t, Tensor) and any(t is before for before in given[:i]) else t
        for i, t in enumerate(given)
    )


def _of_sink(done: Done, sink: Tensor | None) -> Tensor | None:
    """A sink's weight in a row takes from what the row's keys get; its own value is 0.  Works on
    [batch, rows, heads, d_v] and on [rows, heads, d_v]."""
    if sink is None:
        return None
    kept = (done.grad_out.float() * done.out.float()).sum(-1).transpose(-1, -2)
    if done.grad_lse is not None:
        kept = kept - done.grad_lse
    weights = (sink[:, None] - done.lse).exp().masked_fill(done.lse.isneginf(), 0.0)
    return -(weights * kept).transpose(-1, -2).flatten(0, -2).sum(0)
