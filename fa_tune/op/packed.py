"""Packed batches on tensors: sequences of any lengths one after another, which only the device
knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fa_tune.core.tensors import dtype_of
from fa_tune.core.workload import Workload
from fa_tune.families.base import NOT_GIVEN, LaunchArgs, TensorArg
from fa_tune.op import state
from fa_tune.op.backward import packed_gradients


@dataclass(frozen=True)
class Lengths:
    """Sequence i is rows cum_q[i] to cum_q[i + 1] of Q and cum_kv[i] to cum_kv[i + 1] of K, int32
    [batch + 1] on the device; none is longer than `longest_q` and `longest_kv`."""

    cum_q: Tensor
    cum_kv: Tensor
    longest_q: int
    longest_kv: int


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths,
    *,
    causal: bool = False,
    softmax_scale: float | None = None,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Attention of q [total_q, heads, d_head] to k and v [total_kv, kv_heads, d_head] and, where it
    is wanted, its log-sum-exp, fp32 [heads, total_q].  A causal mask is aligned with the end of
    each sequence.  Gradients flow to q, k and v.  Raises as `attention`."""
    wants_grad = (q.requires_grad or k.requires_grad or v.requires_grad) and torch.is_grad_enabled()
    if wants_grad:
        out, lse = _Packed.apply(q, k, v, lengths, causal, softmax_scale)
        return out, lse
    return _forward(q, k, v, lengths, causal, softmax_scale, return_lse)


class _Packed(torch.autograd.Function):  # type: ignore[misc]
    """out and the log-sum-exp, of which only out has a gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        lengths: Lengths,
        causal: bool,
        scale: float | None,
    ) -> tuple[Tensor, Tensor | None]:
        """The forward pass, with the log-sum-exp."""
        out, lse = _forward(q, k, v, lengths, causal, scale, True)
        ctx.save_for_backward(q, k, v, out, lse, lengths.cum_q, lengths.cum_kv)
        ctx.mark_non_differentiable(lse)
        ctx.problem = (lengths.longest_q, lengths.longest_kv, causal, scale)
        return out, lse

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor, _: Tensor | None) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        gradients = packed_gradients(grad_out, *ctx.saved_tensors, *ctx.problem)
        return (*gradients, None, None, None)


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lengths: Lengths,
    causal: bool,
    scale: float | None,
    wants_lse: bool,
) -> tuple[Tensor, Tensor | None]:
    workload = Workload(
        batch=lengths.cum_q.numel() - 1,
        heads=q.shape[1],
        kv_heads=k.shape[1],
        seq_len_q=lengths.longest_q,
        seq_len_kv=lengths.longest_kv,
        d_head=q.shape[2],
        d_head_v=v.shape[2],
        dtype=dtype_of(q),
        causal=causal,
        lse=wants_lse,
        softmax_scale=scale,
        packed=True,
        total_q=q.shape[0],
        total_kv=k.shape[0],
    )
    out = q.new_empty((*q.shape[:2], v.shape[2]))
    lse = q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32) if wants_lse else None
    device = q.device.index
    kernel = state.operators().kernel(workload, device)
    room = kernel.workspace_bytes(workload, device)
    workspace = q.new_empty(room, dtype=torch.uint8) if room else None
    tensors = {
        name: TensorArg.of(t[None], name) for name, t in zip("qkvo", (q, k, v, out), strict=True)
    }
    tensors |= {
        "lse": NOT_GIVEN if lse is None else TensorArg(lse.data_ptr()),
        "cu_seqlens_q": TensorArg(lengths.cum_q.data_ptr()),
        "cu_seqlens_kv": TensorArg(lengths.cum_kv.data_ptr()),
    }
    args = LaunchArgs(tensors, workspace=0 if workspace is None else workspace.data_ptr())
    kernel.launch(workload, args, torch.cuda.current_stream(device).cuda_stream, device)
    return out, lse
