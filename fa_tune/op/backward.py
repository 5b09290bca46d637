"""Gradients by the backward passes that torch has, with our output and log-sum-exp.

torch's kernels compute a problem without a mask and one that is causal and aligned bottom-right
with no more queries than keys.  All others are brought to these by slices.  V of another head
dimension is brought to that of Q and K, or they to V's, by columns of zeros.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

Gradients = tuple[Tensor, Tensor, Tensor]
# grad_out, q, k, v, out, lse, causal, scale -> gradients of q, k, v.  Causal is aligned
# bottom-right, with no more queries than keys.
Kernel = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, bool, float | None], Gradients]

_CUDNN_D_HEAD = 128
_CUDNN_LEAST_LENGTH = 64


def gradients(
    kernel: Kernel,
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
) -> Gradients:
    """Gradients of q, k and v, contiguous.  q, k: [batch, seq_len, heads, d_head]; v, out,
    grad_out: with d_v; lse: fp32 [batch, heads, seq_len_q], -inf for a row that sees no key."""

    def part(rows: slice, keys: slice, causal: bool) -> Gradients:
        dq, dk, dv = kernel(
            grad_out[:, rows].contiguous(),
            q[:, rows],
            k[:, keys],
            v[:, keys],
            out[:, rows],
            lse[:, :, rows].contiguous(),
            causal,
            scale,
        )
        return dq, dk, dv

    n_q, n_kv, every = q.shape[1], k.shape[1], slice(None)
    if not causal or n_q == n_kv or (bottom_right and n_q < n_kv):
        dq, dk, dv = part(every, every, causal)
    elif bottom_right:  # the first rows see no key
        dq = torch.zeros_like(q, memory_format=torch.contiguous_format)
        dq[:, n_q - n_kv :], dk, dv = part(slice(n_q - n_kv, None), every, True)
    elif n_q < n_kv:  # the last keys are seen by no row
        dk, dv = (torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (k, v))
        dq, dk[:, :n_q], dv[:, :n_q] = part(every, slice(n_q), True)
    else:  # the last rows see every key
        dq = torch.empty_like(q, memory_format=torch.contiguous_format)
        dq[:, :n_kv], dk, dv = part(slice(n_kv), every, True)
        dq[:, n_kv:], dk_rest, dv_rest = part(slice(n_kv, None), every, False)
        dk, dv = dk + dk_rest, dv + dv_rest
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


def of_torch(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float | None,
) -> Gradients:
    """By cuDNN where it is the faster one and takes the problem, else by FlashAttention 2."""
    d_head, d_v = q.shape[3], v.shape[3]
    if d_head != d_v:
        scale = 1 / math.sqrt(d_head) if scale is None else scale
        wide = max(d_head, d_v)
        grad_out, q, k, v, out = (_widened(t, wide) for t in (grad_out, q, k, v, out))
    kernel = _cudnn if _suits_cudnn(q, k, causal) else _flash2
    dq, dk, dv = kernel(grad_out, q, k, v, out, lse, causal, scale)
    return dq[..., :d_head], dk[..., :d_head], dv[..., :d_v]


def _widened(tensor: Tensor, columns: int) -> Tensor:
    """With columns of zeros behind its own.  They leave scores, outputs and gradients as they
    are."""
    missing = columns - tensor.shape[3]
    return torch.nn.functional.pad(tensor, (0, missing)) if missing else tensor


def packed_gradients(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    cum_q: Tensor,
    cum_kv: Tensor,
    longest_q: int,
    longest_kv: int,
    causal: bool,
    scale: float | None,
) -> Gradients:
    """Gradients of a packed batch by FlashAttention 2, which wants an infinite log-sum-exp of rows
    that see no key.  lse: fp32 [heads, total_q]."""
    seed, offset = _no_dropout(q)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        *(grad_out.contiguous(), q, k, v, out, lse.abs().where(lse.isinf(), lse)),
        *(cum_q, cum_kv, longest_q, longest_kv, 0.0, causal, seed, offset),
        scale=scale,
    )
    return dq, dk, dv


def _suits_cudnn(q: Tensor, k: Tensor, causal: bool) -> bool:
    """Its causal mask is aligned top-left."""
    n_q, n_kv = q.shape[1], k.shape[1]
    return (
        _has_fast_cudnn(q.device.index)
        and q.shape[2] == k.shape[2]
        and q.shape[3] <= _CUDNN_D_HEAD
        and (not causal or n_q == n_kv)
        and min(n_q, n_kv) >= _CUDNN_LEAST_LENGTH
        and not torch.are_deterministic_algorithms_enabled()
        and not torch.cuda.is_current_stream_capturing()  # it may have to plan
    )


@cache
def _has_fast_cudnn(device: int) -> bool:
    version = torch.backends.cudnn.version() or 0
    return torch.cuda.get_device_capability(device)[0] in (9, 10) and version >= 91000


def _flash2(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float | None,
) -> Gradients:
    seed, offset = _no_dropout(q)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        *(grad_out, q, k, v, out, lse, None, None, q.shape[1], k.shape[1]),
        *(0.0, causal, seed, offset),
        scale=scale,
    )
    return dq, dk, dv


def _cudnn(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float | None,
) -> Gradients:
    seed, offset = _no_dropout(q)
    dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        *(t.transpose(1, 2) for t in (grad_out, q, k, v, out)),
        *(lse.unsqueeze(-1), seed, offset, None, None, None, q.shape[1], k.shape[1]),
        *(0.0, causal),
        scale=scale,
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)


def _no_dropout(q: Tensor) -> tuple[Tensor, Tensor]:
    """The state of a random generator that nothing is drawn from."""
    seed = torch.empty(2, dtype=torch.uint64, device=q.device)
    return seed, torch.empty((), dtype=torch.uint64, device=q.device)
