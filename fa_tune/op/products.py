"""Attention and its gradients by matrix products in fp32 or wider, of all traits: slow.

Gradients are taken some rows at a time.  `forward` and `packed_forward` materialise all scores, and
are made of torch's operations alone, which have derivatives of all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fa_tune.core.hooks import twin_of
from fa_tune.op.operands import Done, Gradients, Lengths
from fa_tune.op.precision import without_autocast
from fa_tune.op.traits import Traits, bounds

SCORES_AT_ONCE = 2**26  # of all heads together: 256 MiB in fp32, a few times


@without_autocast
def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    traits: Traits,
    *,
    keys: Tensor | None = None,
    sequence: int | None = None,
    dropout_p: float = 0.0,
    added: tuple[Tensor | None, ...] = (),
) -> tuple[Tensor, Tensor]:
    """out and the log-sum-exp, as the operator's.  `keys` [batch]: how many keys each of the batch
    has, None: all; `sequence`: as in `gradients`.  `added` to scores at last: [1 or batch, 1 or
    heads, seq_len_q, seq_len_kv], or boolean, False where a key is hidden.  Sinks may be of each
    query, [batch, heads, seq_len_q, 1]."""
    kind = torch.promote_types(q.dtype, torch.float32)
    kv_heads, n_kv = k.shape[2], k.shape[1]
    values = v.to(kind)
    slopes, _ = _slopes(traits, q.shape[0], kv_heads, kind)
    count = n_kv if keys is None else keys.to(q.device).view(-1, 1, 1, 1, 1)
    place = _Place(0, q.shape[1], sequence, count)
    grouped = _of_groups(q.to(kind), kv_heads)
    scores, *_ = _scores(grouped, k.to(kind), traits, slopes, place, records=True)
    for more in added:
        if more is not None:
            of_groups = more.unflatten(1, (kv_heads if more.shape[1] > 1 else 1, -1))
            hides = more.dtype == torch.bool
            scores = scores.masked_fill(~of_groups, -torch.inf) if hides else scores + of_groups
    if keys is not None:  # what no query sees may be anything, such as freed pages
        unseen = scores.isneginf().all(3).flatten(1, 2).all(1)
        values = values.masked_fill(unseen[..., None, None], 0.0)
    if traits.sink is not None:
        sink = traits.sink if traits.sink.ndim == 4 else traits.sink[:, None, None]
        sink = sink.to(kind).unflatten(-3, (kv_heads, -1))
        scores = torch.cat((scores, sink.expand(*scores.shape[:-1], 1)), -1)
    blind = scores.isneginf().all(-1, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    weights = scores.softmax(-1).masked_fill(blind, 0.0)[..., :n_kv]
    weights = torch.nn.functional.dropout(weights, dropout_p)
    out = torch.einsum("bngqk,bknd->bqngd", weights, values).flatten(2, 3)
    lse = scores.logsumexp(-1).masked_fill(blind[..., 0], -torch.inf).flatten(1, 2)
    return out.to(q.dtype), lse.float()


def packed_forward(
    q: Tensor, k: Tensor, v: Tensor, lengths: Lengths, traits: Traits, *, dropout_p: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same of a packed batch, sequence by sequence; zeros in rows that are of none.  It waits
    for the GPU, which has their lengths."""
    outs = [q[:0, :, :1].expand(0, q.shape[1], v.shape[2])]  # there may be no sequence
    rows = [q.new_zeros((q.shape[1], 0), dtype=torch.float32)]
    ends_q, ends_kv = lengths.cum_q.tolist(), lengths.cum_kv.tolist()
    for i, (of_q, of_k) in enumerate(zip(pairwise(ends_q), pairwise(ends_kv), strict=True)):
        three = (q[None, slice(*of_q)], k[None, slice(*of_k)], v[None, slice(*of_k)])
        one = traits._replace(alibi_slopes=_of_sequence(traits.alibi_slopes, i))
        out, lse = forward(*three, one, sequence=i, dropout_p=dropout_p)
        outs.append(out[0])
        rows.append(lse[0])
    around = (ends_q[0], q.shape[0] - ends_q[-1])
    pad = torch.nn.functional.pad
    return pad(torch.cat(outs), (0, 0, 0, 0, *around)), pad(torch.cat(rows, 1), around)


def _of_sequence(slopes: Tensor | None, i: int) -> Tensor | None:
    return slopes if slopes is None or slopes.ndim == 1 else slopes[[i]]


@without_autocast
def gradients(
    done: Done, traits: Traits, *, sequence: int | None = None, at_once: int = SCORES_AT_ONCE
) -> Gradients:
    """As `backward.gradients`, of any traits.  `sequence`: its number in a packed batch, of which
    it is one; it is aligned bottom-right, whatever the traits say."""
    kind = torch.promote_types(done.q.dtype, torch.float32)
    batch, n_q, heads, _ = done.q.shape
    n_kv, kv_heads = done.k.shape[1:3]
    group = heads // kv_heads
    q, g = (_of_groups(t.to(kind), kv_heads) for t in (done.q, done.grad_out))
    k, v = done.k.to(kind), done.v.to(kind)
    # A row that sees nothing has no weights.
    lse = done.lse.to(kind).masked_fill(done.lse == -torch.inf, torch.inf)
    lse = lse.view(batch, kv_heads, group, n_q)
    d_lse = None if done.grad_lse is None else done.grad_lse.to(kind).view(lse.shape)
    dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
    slopes, d_slopes = _slopes(traits, batch, kv_heads, kind)
    step = max(1, at_once // max(1, batch * heads * n_kv))
    for begin in range(0, n_q, step):
        rows = slice(begin, min(begin + step, n_q))
        place = _Place(begin, n_q, sequence, n_kv)
        scores, slope, bend, distance = _scores(q[:, rows], k, traits, slopes, place)
        weights = (scores - lse[..., rows, None]).exp()
        change = torch.einsum("bqngd,bknd->bngqk", g[:, rows], v)
        # The mean by weights, not the product of gradient and output: that one was rounded.
        mean = (weights * change).sum(-1, keepdim=True)
        if d_lse is not None:
            mean = mean - d_lse[..., rows, None]
        change = bend * weights * (change - mean)
        if d_slopes is not None:
            d_slopes -= (change * distance).sum((-2, -1))
        change = change * slope
        dq[:, rows] = torch.einsum("bngqk,bknd->bqngd", change, k)
        dk += torch.einsum("bngqk,bqngd->bknd", change, q[:, rows])
        dv += torch.einsum("bngqk,bqngd->bknd", weights, g[:, rows])
    return (
        dq.flatten(2, 3).to(done.q.dtype),
        dk.to(done.k.dtype),
        dv.to(done.v.dtype),
        _of_slopes(d_slopes, traits, done.q.device),
    )


def packed_gradients(done: Done, lengths: Lengths, traits: Traits) -> Gradients:
    """As `backward.packed_gradients`, of any traits, sequence by sequence.  It waits for the GPU,
    which has their lengths."""
    dq, dk, dv = (
        torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (done.q, done.k, done.v)
    )
    slopes = traits.alibi_slopes
    d_slopes = None if slopes is None else torch.zeros_like(slopes, dtype=torch.float32)
    ends_q, ends_kv = lengths.cum_q.tolist(), lengths.cum_kv.tolist()
    for i in range(len(ends_q) - 1):
        rows, keys = slice(ends_q[i], ends_q[i + 1]), slice(ends_kv[i], ends_kv[i + 1])
        part = Done(
            done.grad_out[None, rows],
            *(done.q[None, rows], done.k[None, keys], done.v[None, keys], done.out[None, rows]),
            done.lse[None, :, rows],
            None if done.grad_lse is None else done.grad_lse[None, :, rows],
        )
        one = traits._replace(alibi_slopes=_of_sequence(slopes, i))
        found = gradients(part, one, sequence=i)
        dq[rows], dk[keys], dv[keys] = (t[0] for t in found[:3])
        if d_slopes is not None:
            d_slopes[[i] if d_slopes.ndim == 2 else ...] += found[3]
    none = torch.empty(0, dtype=torch.float32, device=dq.device)
    return dq, dk, dv, none if d_slopes is None else d_slopes


def _of_groups(tensor: Tensor, kv_heads: int) -> Tensor:
    return tensor.unflatten(2, (kv_heads, -1))


def _slopes(
    traits: Traits, batch: int, kv_heads: int, kind: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """Slopes, and room for their gradient, [batch, kv_heads, group]."""
    if traits.alibi_slopes is None:
        return None, None
    given = traits.alibi_slopes.to(kind)
    found = given.expand(batch, given.shape[-1]).unflatten(1, (kv_heads, -1))
    return found, torch.zeros(found.shape, dtype=kind, device=found.device)


def _of_slopes(d_slopes: Tensor | None, traits: Traits, device: torch.device) -> Tensor:
    if d_slopes is None or traits.alibi_slopes is None:
        return torch.empty(0, dtype=torch.float32, device=device)
    found = d_slopes.flatten(1).float()
    return found if traits.alibi_slopes.ndim == 2 else found.sum(0)


class _Place(NamedTuple):
    """Some rows: the first of them, of how many, and the number of their sequence in a packed
    batch; None: the batch is not packed.  `n_kv`: keys, also as a tensor [batch, 1, 1, 1, 1]."""

    begin: int
    n_q: int
    sequence: int | None
    n_kv: Any


def _scores(
    q: Tensor,
    k: Tensor,
    traits: Traits,
    slopes: Tensor | None,
    place: _Place,
    *,
    records: bool = False,
) -> tuple[Tensor, Tensor | float, Tensor | float, Tensor]:
    """Scores of rows, -inf where hidden; what a score before the hook changes by with its product,
    and a score by with that; how far keys are from their queries.  `records`: torch takes the
    derivatives, not the caller."""
    n_rows, n_kv = q.shape[1], k.shape[1]
    scale = 1 / math.sqrt(q.shape[-1]) if traits.scale is None else traits.scale
    scores = torch.einsum("bqngd,bknd->bngqk", q, k) * scale
    slope: Tensor | float = scale
    if traits.softcap is not None:
        bent = torch.tanh(scores / traits.softcap)
        scores, slope = traits.softcap * bent, scale * (1 - bent * bent)
    row = torch.arange(place.begin, place.begin + n_rows, device=q.device)[:, None]
    key = torch.arange(n_kv, device=q.device)
    aligned = place.sequence is not None
    diagonal = place.n_kv - place.n_q if aligned or traits.bottom_right else 0
    distance = (key - row - diagonal).abs()
    if slopes is not None:
        scores = scores - slopes[..., None, None] * distance
    bend: Tensor | float = 1.0
    if traits.score_hook is not None:
        scores, bend = _through_hook(
            traits.score_hook, scores, row, key, first=place.sequence or 0, records=records
        )
    first, last = bounds(traits, place.n_q, place.n_kv, aligned=aligned)
    if isinstance(place.n_kv, Tensor):
        scores = scores.masked_fill(key >= place.n_kv, -torch.inf)
    if first is not None:
        scores = scores.masked_fill(key - row < first, -torch.inf)
    if last is not None:
        scores = scores.masked_fill(key - row > last, -torch.inf)
    return scores, slope, bend, distance


def _through_hook(
    digest: str, scores: Tensor, row: Tensor, key: Tensor, *, first: int, records: bool
) -> tuple[Tensor, Tensor | float]:
    """What the hook's function in torch makes of scores of the batch elements from `first` on, and
    its slope, which is left to torch where it records."""
    batch, kv_heads, group = scores.shape[:3]
    element = torch.arange(first, first + batch, device=scores.device).view(-1, 1, 1, 1, 1)
    head = torch.arange(kv_heads * group, device=scores.device).view(kv_heads, group, 1, 1)
    if records:
        return twin_of(digest)(scores, element, head, row, key), 1.0
    with _recording():
        given = scores.detach().requires_grad_()
        found = twin_of(digest)(given, element, head, row, key)
        (bend,) = torch.autograd.grad(found.sum(), given, allow_unused=True)
    return found.detach(), torch.zeros_like(scores) if bend is None else bend


@contextmanager
def _recording() -> Iterator[None]:
    """Where autograd records, also in an operator that runs below a dispatch mode, such as a
    counter of FLOPs: torch leaves autograd's keys out there, for which it has no public way
    back."""
    with ExitStack() as stack:
        for key in (
            torch._C.DispatchKey.AutogradFunctionality,
            torch._C.DispatchKey.ADInplaceOrView,
        ):
            stack.enter_context(torch._C._SetExcludeDispatchKeyGuard(key, False))
        stack.enter_context(torch.enable_grad())
        yield
