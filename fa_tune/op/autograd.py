"""Attention with gradients: a function around the operators, entered where an input wants one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fa_tune.op import library  # noqa: F401  defines the operators

_fwd_lse = torch.ops.fa_tune.fwd_lse.default
_bwd = torch.ops.fa_tune.bwd.default


class Attention(torch.autograd.Function):  # type: ignore[misc]
    """out and the log-sum-exp, of which only out has a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        causal: bool,
        bottom_right: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor]:
        """The operator's forward pass, with the log-sum-exp."""
        out, lse = _fwd_lse(q, k, v, causal, bottom_right, scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.mark_non_differentiable(lse)
        ctx.problem = (causal, bottom_right, scale)
        return out, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        q, k, v, out, lse = ctx.saved_tensors
        return (*_bwd(grad_out, q, k, v, out, lse, *ctx.problem), None, None, None)
