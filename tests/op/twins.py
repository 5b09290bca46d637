"""The operators on the CPU, by materialised scores: for what does not depend on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise, product
from typing import Any

import torch

from fa_tune.core.hooks import register, twin_of
from fa_tune.op import backward
from fa_tune.op.backward import Mask, Three
from fa_tune.op.library import N_TRAITS
from fa_tune.op.operands import Done, Gradients, Lengths
from fa_tune.op.traits import Traits

Tensor = torch.Tensor
sdpa = torch.nn.functional.scaled_dot_product_attention


def hook(result: str, twin: Any = None) -> str:
    """The digest of a score hook with this result."""
    signature = "score_hook(float s, int b, int h, int q, int k)"
    return register(f"__device__ float {signature} {{ return {result}; }}", twin)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape)


def by_torch(q: Any, k: Any, v: Any, **options: Any) -> Tensor:
    found: Tensor = sdpa(*(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True, **options)
    return found.transpose(1, 2)


def scores_of(q: Tensor, k: Tensor, traits: Traits, first: int = 0) -> Tensor:
    """fp64 [batch, heads, seq_len_q, seq_len_kv]; -inf where nothing is seen.  `first`: the number
    of the first batch element."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double())
    scores = scores * (q.shape[3] ** -0.5 if traits.scale is None else traits.scale)
    if traits.softcap is not None:
        scores = traits.softcap * torch.tanh(scores / traits.softcap)
    n_q, n_kv = scores.shape[-2:]
    place = torch.arange(n_q)[:, None] + (n_kv - n_q if traits.bottom_right else 0)
    ahead = torch.arange(n_kv) - place
    if traits.alibi_slopes is not None:
        slopes = traits.alibi_slopes.double().expand(q.shape[0], q.shape[2])
        scores = scores - slopes[..., None, None] * ahead.abs()
    if traits.score_hook is not None:
        batch, heads = (torch.arange(n) for n in scores.shape[:2])
        places = (first + batch[:, None, None, None], heads[:, None, None])
        rows, keys = torch.arange(n_q)[:, None], torch.arange(n_kv)
        scores = twin_of(traits.score_hook)(scores, *places, rows, keys)
    hidden = torch.zeros(n_q, n_kv, dtype=torch.bool)
    if traits.causal:
        hidden |= ahead > 0
    if traits.window_left is not None:
        hidden |= ahead < -traits.window_left
    if traits.window_right is not None:
        hidden |= ahead > traits.window_right
    return scores.masked_fill(hidden, -torch.inf)


def defined(
    q: Tensor, k: Tensor, v: Tensor, traits: Traits, first: int = 0
) -> tuple[Tensor, Tensor]:
    """out and the log-sum-exp in fp64; autograd goes through it."""
    scores = scores_of(q, k, traits, first)
    if traits.sink is not None:
        more = traits.sink.double()[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, more), -1)
    blind = scores.isneginf().all(-1, keepdim=True)
    seen = scores.masked_fill(blind, 0.0)
    lse = seen.logsumexp(-1).masked_fill(blind[..., 0], -torch.inf)
    weights = seen.softmax(-1).masked_fill(blind, 0.0)
    values = v.repeat_interleave(q.shape[2] // v.shape[2], 2).double()
    return torch.einsum("bhqk,bkhd->bqhd", weights[..., : k.shape[1]], values), lse


def fwd(q: Tensor, k: Tensor, v: Tensor, *traits: Any) -> Tensor:
    return fwd_lse(q, k, v, *traits)[0].clone()


def fwd_lse(q: Tensor, k: Tensor, v: Tensor, *traits: Any) -> tuple[Tensor, Tensor]:
    out, lse = defined(q, k, v, Traits(*traits))
    return out.to(q.dtype).contiguous(), lse.float().contiguous()


def fwd_out(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor | None, *traits: Any) -> None:
    made, rows = fwd_lse(q, k, v, *traits)
    out.copy_(made)
    if lse is not None:
        lse.copy_(rows)


def packed_fwd(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> Tensor:
    return packed_fwd_lse(q, k, v, *others)[0].clone()


def packed_fwd_lse(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    lengths, traits = Lengths(*others[:4]), Traits(*others[4:])._replace(bottom_right=True)
    out = q.new_zeros((*q.shape[:2], v.shape[2]))
    lse = torch.zeros(q.shape[1], q.shape[0])
    slopes = traits.alibi_slopes
    ends_q, ends_kv = lengths.cum_q.tolist(), lengths.cum_kv.tolist()
    for i in range(len(ends_q) - 1):
        rows, keys = slice(ends_q[i], ends_q[i + 1]), slice(ends_kv[i], ends_kv[i + 1])
        one = traits
        if slopes is not None and slopes.ndim == 2:
            one = traits._replace(alibi_slopes=slopes[[i]])
        found = defined(q[None, rows], k[None, keys], v[None, keys], one, i)
        out[rows], lse[:, rows] = found[0][0].to(q.dtype), found[1][0].float()
    return out, lse


def packed_fwd_out(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> None:
    lengths, (out, lse, *traits) = others[:4], others[4:]
    made, rows = packed_fwd_lse(q, k, v, *lengths, *traits)
    out.copy_(made)
    if lse is not None:
        lse.copy_(rows)


def flash_backward(done: Done, mask: Mask) -> Three:
    """What torch's kernels compute, from the log-sum-exp; they are never asked for more.  A side as
    wide as there are keys is none to them; where the other one is not, it is that wide."""
    assert mask.left is None or mask.left >= 0
    assert mask.right is None or mask.right >= 0
    assert done.lse.isfinite().all()
    assert done.lse.is_contiguous()
    assert done.grad_out.is_contiguous()
    return _flash_backward(done, mask)


def _flash_backward(done: Done, mask: Mask) -> Three:
    q, k = done.q, done.k
    group, factor = (
        q.shape[2] // k.shape[2],
        q.shape[3] ** -0.5 if mask.scale is None else mask.scale,
    )
    n_kv = k.shape[1]
    sides = [None if side is None or side >= n_kv else side for side in (mask.left, mask.right)]
    if sides != [None, None]:
        sides = [n_kv if side is None else side for side in sides]
    scores = scores_of(q, k, Traits(False, True, factor, *sides))
    weights = (scores - done.lse.double()[..., None]).exp()
    keys, values = (t.repeat_interleave(group, 2).double() for t in (k, done.v))
    g = done.grad_out.double()
    delta = (g * done.out.double()).sum(-1).transpose(1, 2)[..., None]
    slope = weights * (torch.einsum("bqhd,bkhd->bhqk", g, values) - delta) * factor
    dq = torch.einsum("bhqk,bkhd->bqhd", slope, keys)
    dk, dv = (
        torch.einsum("bhqk,bqhd->bkhd", matrix, right).unflatten(2, (-1, group)).sum(3)
        for matrix, right in ((slope, q.double()), (weights, g))
    )
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(done.v.dtype)


def packed_flash_backward(done: Done, mask: Mask, lengths: Lengths) -> Three:
    """As torch's kernels, which leave what is in rows of no sequence as it was."""
    found = dq, dk, dv = [torch.full_like(t, torch.nan) for t in (done.q, done.k, done.v)]
    ends = (pairwise(of.tolist()) for of in lengths[:2])
    for of_q, of_k in zip(*ends, strict=True):
        rows, keys = slice(*of_q), slice(*of_k)
        part = Done(
            *(done.grad_out[None, rows], done.q[None, rows], done.k[None, keys]),
            *(done.v[None, keys], done.out[None, rows], done.lse[None, :, rows]),
        )
        for whole, place, one in zip(
            found, (rows, keys, keys), _flash_backward(part, mask), strict=True
        ):
            whole[place] = one[0]
    return dq, dk, dv


def bwd(*given: Any) -> Gradients:
    return backward.gradients(Done(*given[:7]), Traits(*given[7 : 7 + N_TRAITS]), flash_backward)


def packed_bwd(*given: Any) -> Gradients:
    lengths, traits = Lengths(*given[7:11]), Traits(*given[11 : 11 + N_TRAITS])
    return backward.packed_gradients(Done(*given[:7]), lengths, traits, packed_flash_backward)


DENSE, PACKED = (fwd, fwd_lse, fwd_out), (packed_fwd, packed_fwd_lse, packed_fwd_out)


@contextmanager
def registered() -> Iterator[None]:
    """In place of the refusal that CPU tensors get."""
    functions = [*product(("", "scored_", "hooked_"), DENSE), *product(("", "hooked_"), PACKED)]
    with torch.library._scoped_library("fa_tune", "IMPL") as found:
        for kind, function in (*functions, ("", bwd), ("", packed_bwd)):
            found.impl(kind + function.__name__, function, "CPU", allow_override=True)
        yield
