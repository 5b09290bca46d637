"""The operators on the CPU, by materialised scores: for what does not depend on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from fa_tune.op.backward import Gradients, gradients

Tensor = torch.Tensor


def scores_of(
    q: Tensor, k: Tensor, causal: bool, bottom_right: bool, scale: float | None
) -> Tensor:
    """fp64 [batch, heads, seq_len_q, seq_len_kv]; -inf where nothing is seen."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double())
    scores = scores * (q.shape[3] ** -0.5 if scale is None else scale)
    n_q, n_kv = scores.shape[-2:]
    diagonal = n_kv - n_q if bottom_right else 0
    hidden = torch.ones(n_q, n_kv).triu(diagonal + 1).bool()
    return scores.masked_fill(hidden, -torch.inf) if causal else scores


def fwd(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
) -> Tensor:
    return fwd_lse(q, k, v, causal, bottom_right, scale)[0].clone()


def fwd_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    scores = scores_of(q, k, causal, bottom_right, scale)
    v = v.repeat_interleave(q.shape[2] // v.shape[2], 2).double()
    weights = scores.softmax(-1).nan_to_num(0.0)
    out = torch.einsum("bhqk,bkhd->bqhd", weights, v).to(q.dtype).contiguous()
    return out, scores.logsumexp(-1).float().contiguous()


def fwd_out(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    bottom_right: bool,
    scale: float | None,
    out: Tensor,
    lse: Tensor | None,
) -> None:
    made, rows = fwd_lse(q, k, v, causal, bottom_right, scale)
    out.copy_(made)
    if lse is not None:
        lse.copy_(rows)


def flash_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float | None,
) -> Gradients:
    """What torch's kernels compute, from the log-sum-exp; they are never asked for more."""
    assert not causal or q.shape[1] <= k.shape[1]
    assert lse.isfinite().all()
    assert lse.is_contiguous()
    assert grad_out.is_contiguous()
    group, factor = q.shape[2] // k.shape[2], q.shape[3] ** -0.5 if scale is None else scale
    weights = (scores_of(q, k, causal, True, scale) - lse.double()[..., None]).exp()
    keys, values = (t.repeat_interleave(group, 2).double() for t in (k, v))
    g = grad_out.double()
    delta = (g * out.double()).sum(-1).transpose(1, 2)[..., None]
    slope = weights * (torch.einsum("bqhd,bkhd->bhqk", g, values) - delta) * factor
    dq = torch.einsum("bhqk,bkhd->bqhd", slope, keys)
    dk, dv = (
        torch.einsum("bhqk,bqhd->bkhd", matrix, right).unflatten(2, (-1, group)).sum(3)
        for matrix, right in ((slope, q.double()), (weights, g))
    )
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def bwd(
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
    return gradients(flash_backward, grad_out, q, k, v, out, lse, causal, bottom_right, scale)


@contextmanager
def registered() -> Iterator[None]:
    """In place of the refusal that CPU tensors get."""
    with torch.library._scoped_library("fa_tune", "IMPL") as found:
        for function in (fwd, fwd_lse, fwd_out, bwd):
            found.impl(function.__name__, function, "CPU", allow_override=True)
        yield
