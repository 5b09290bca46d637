"""What a forward pass must give, in fp64; what the same computation in a kernel's own precision
makes of it; and how far fp32 scores leave it open.

The reference is softmax as torch computes it with fp32 scores: probabilities that sum up to 1,
rounded to the dtype for the second product, and one rounding of the output.  It does not round
weights of which the largest is 1 instead: that has no rounding error of its own where one key has
most of the weight, and a kernel that does not know the maximum beforehand cannot have it.

The bound: a score is a sum of d_head products, scale · Σ q_c k_c.  In fp32 each of its additions
may be off by 2^-24 of what has come together.  Tensor cores truncate at every 16 products, always
downwards.  Where the products have one sign that adds up: FlashAttention 2 is at up to 1.2 times
the first of these terms there, so there is a second.
2^-24 · scale · ((d_head / 16 + 8) · Σ |q_c k_c| + d_head / 32 · |Σ q_c k_c|), the largest of a row,
is what its scores are not known better than: u nats.
A log-sum-exp is then open by u.  An output Σ w_j v_j is by (e^u − 1) Σ w_j |v_j − o|, since every
weight changes by a factor of at most e^u; and by no more than the weight that can leave the largest
key, times the range of V.  Each of a kernel's keys / 16 additions in tensor cores cuts off 2^-25 of
the sum on average, which shows from some 10,000 keys on; the reference adds without that, so its
own errors are not forgiven as much.  With scores of a few nats u is 1e-6 and
matters to nothing; with scores of 1e5 it is the better part of what errors there are, and chance
decides who has more.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fa_tune.core.workload import Workload
from fa_tune.operations.base import Figures, Tensors
from fa_tune.operations.forward.spec import LSE_TOLERANCE
from fa_tune.operations.forward.torch_side.all_inputs import wide
from fa_tune.operations.forward.torch_side.caches import sequence
from fa_tune.operations.forward.torch_side.hook_twin import largest_term
from fa_tune.operations.forward.torch_side.scores import changed_scores, hidden_pairs, places
from fa_tune.operations.torch_side import Judged

ADDED_AT_ONCE = 16  # products, by a tensor core
OTHER_ROUNDINGS = 8  # scaling, and what a run of luck adds to the mean
SCORES_AT_ONCE = 2**26  # half a GiB in fp64, several times over


@dataclass(frozen=True)
class _Part:
    """Some queries of some kv heads and the heads that share them, of one batch."""

    batch: int
    rows: slice
    kv_heads: slice
    heads: slice


def _parts(w: Workload) -> Iterator[_Part]:
    group = w.heads // w.kv_heads
    rows = max(1, min(w.seq_len_q, SCORES_AT_ONCE // (group * w.seq_len_kv)))
    n_heads = max(1, SCORES_AT_ONCE // (group * w.seq_len_kv * rows))
    for batch in range(w.batch):
        for first in range(0, w.kv_heads, n_heads):
            end = min(first + n_heads, w.kv_heads)
            for row in range(0, w.seq_len_q, rows):
                queries = slice(row, min(row + rows, w.seq_len_q))
                kv, heads = slice(first, end), slice(first * group, end * group)
                yield _Part(batch, queries, kv, heads)


def expected(
    workload: Workload, inputs: Tensors, *, precise: torch.dtype | None = None
) -> dict[str, Judged]:
    """What `o` and `lse` must be, in blocks that fit the memory at any length.

    `precise` float32 takes a fraction of the time on GPUs that are slow in fp64.  It is near
    enough while scores are some tens of nats, where its errors are 1e-2 of the dtype's rounding.
    """
    precise = precise or torch.float64
    inputs = wide(inputs)
    if workload.packed or workload.cached:
        return _of_sequences(workload, inputs, precise)
    return _dense(workload, inputs, precise)


def _dense(w: Workload, inputs: Tensors, precise: torch.dtype, first: int = 0) -> dict[str, Judged]:
    """Those of a batch of one length; hooks count its elements from `first` on."""
    q, v = inputs["q"], inputs["v"]
    shape, rows = (*q.shape[:3], v.shape[3]), (w.batch, w.heads, w.seq_len_q)
    types = (precise, torch.float32, torch.float32, q.dtype)
    of_o = [torch.empty(shape, dtype=dtype, device=q.device) for dtype in types]
    of_lse = [torch.empty(rows, dtype=dtype, device=q.device) for dtype in (precise, torch.float64)]
    for part in _parts(w):
        found = _forward_part(w, inputs, part, precise, first)
        where = (part.batch, part.rows, part.heads)
        for whole, own in zip(of_o, (found.exact, found.open, found.cut, found.same), strict=True):
            whole[where] = own.flatten(0, 1).transpose(0, 1).to(whole.dtype)
        where = (part.batch, part.heads, part.rows)
        for whole, own in zip(of_lse, (found.lse, found.score_open), strict=True):
            whole[where] = own.flatten(0, 1)
    (exact, open_, cut, same), (lse, lse_open) = of_o, of_lse
    return {
        "o": Judged(exact, open_ + cut, Judged(exact, open_).errors(same)),
        "lse": Judged(lse, lse_open.clamp(min=LSE_TOLERANCE)),
    }


@dataclass(frozen=True)
class _Sequence:
    """One of a packed batch or a cache, as a problem of its own."""

    workload: Workload
    inputs: Tensors
    number: int
    batch: slice  # of O and the log-sum-exp
    rows: slice


def _sequences(w: Workload, inputs: Tensors) -> Iterator[_Sequence]:
    """Those that have queries and keys."""
    q_end = kv_end = 0
    for i, (q, kv) in enumerate(w.members):
        q_start, kv_start = q_end, kv_end
        q_end, kv_end = q_start + q, kv_start + kv
        if not (q and kv):
            continue
        one, whole = slice(i, i + 1), slice(None)
        batch, rows = (whole, slice(q_start, q_end)) if w.packed else (one, whole)
        if w.packed:
            k, v = (inputs[name][:, kv_start:kv_end] for name in ("k", "v"))
        else:
            table = inputs.get("page_table")
            k, v = (sequence(inputs[name], table, i, kv) for name in ("k", "v"))
        own = {"q": inputs["q"][batch, rows], "k": k, "v": v}
        own |= {"sink": inputs["sink"]} if w.sink else {}
        own |= {"alibi_slopes": inputs["alibi_slopes"][one]} if w.alibi else {}
        yield _Sequence(w.dense(1, q, kv), own, i, batch, rows)


def _of_sequences(w: Workload, inputs: Tensors, precise: torch.dtype) -> dict[str, Judged]:
    """Sequence by sequence; rows without keys are 0, their log-sum-exp is -inf or the sink.  The
    reference's errors are those of all sequences together."""
    (batch, rows, heads, _), d_v = inputs["q"].shape, inputs["v"].shape[3]
    device, shape = inputs["q"].device, (batch, rows, heads, d_v)
    exact = torch.zeros(shape, dtype=precise, device=device)
    open_ = torch.zeros(shape, dtype=torch.float32, device=device)
    lse = torch.full((batch, heads, rows), -torch.inf, dtype=precise, device=device)
    if w.sink:
        lse[:] = inputs["sink"][:, None]
    lse_open = torch.full(lse.shape, LSE_TOLERANCE, dtype=torch.float64, device=device)
    largest = squares = alike = 0.0
    for one in _sequences(w, inputs):
        found = _dense(one.workload, one.inputs, precise, one.number)
        o, of_rows = found["o"], found["lse"]
        exact[one.batch, one.rows], open_[one.batch, one.rows] = o.exact, o.open
        lse[one.batch, :, one.rows], lse_open[one.batch, :, one.rows] = of_rows.exact, of_rows.open
        if o.reference is not None:
            largest = max(largest, o.reference.largest)
            squares += o.reference.rms**2 * one.workload.seq_len_q
            alike += o.reference.rows
    # Of all rows, those without keys too, which are exact.
    rms = math.sqrt(squares / max(1, batch * rows))
    return {
        "o": Judged(exact, open_, Figures(largest, rms, max(1.0, alike))),
        "lse": Judged(lse, lse_open),
    }


@dataclass(frozen=True)
class _Found:
    """Of a part, [kv heads, group, rows, d_v] or without the last."""

    exact: torch.Tensor
    open: torch.Tensor
    cut: torch.Tensor  # by tensor cores
    same: torch.Tensor
    lse: torch.Tensor
    score_open: torch.Tensor


def _forward_part(
    w: Workload, inputs: Tensors, part: _Part, precise: torch.dtype, first: int
) -> _Found:
    group = w.heads // w.kv_heads
    q = inputs["q"][part.batch, part.rows, part.heads].transpose(0, 1).unflatten(0, (-1, group))
    k, v = (
        inputs[name][part.batch, :, part.kv_heads].transpose(0, 1)[:, None] for name in ("k", "v")
    )
    hidden = hidden_pairs(w, q.device, rows=part.rows)
    exact_v = v.to(precise)

    def by_group(of_heads: torch.Tensor) -> torch.Tensor:
        return of_heads[part.heads].unflatten(0, (-1, group))[..., None, None]

    sink, slopes = inputs.get("sink"), inputs.get("alibi_slopes")
    sink = None if sink is None else by_group(sink)
    slopes = None if slopes is None else by_group(slopes[part.batch])
    heads = by_group(torch.arange(w.heads, device=q.device))
    element = first + part.batch

    def scores(dtype: torch.dtype) -> torch.Tensor:
        products = (q.to(dtype) @ k.to(dtype).transpose(-1, -2)).mul_(w.scale)
        found = changed_scores(products, w, slopes, rows=part.rows, of=(element, heads))
        return found if hidden is None else found.masked_fill_(hidden, -math.inf)

    weights, total, lse = _weights(scores(precise), sink)
    o = weights @ exact_v / total
    spread = (weights @ exact_v.square() / total).sub_(o.square()).clamp_(min=0).sqrt_()
    others = (total - 1).clamp_(min=0) / total
    del weights
    nats = score_open(q, k, w.scale, hidden) + change_open(w, slopes, part.rows)
    u = nats[..., None].clamp(max=80).to(precise)
    highest, lowest = exact_v.amax(-2, keepdim=True), exact_v.amin(-2, keepdim=True)
    if sink is not None:  # a key whose value is 0
        highest, lowest = highest.clamp(min=0), lowest.clamp(max=0)
    value_range = (highest - lowest).to(v.dtype).to(precise)
    most = (others * u.exp()).clamp_(max=1) * value_range
    bound = torch.minimum(torch.expm1(u) * spread, most)
    cut = o.abs() * (w.seq_len_kv / ADDED_AT_ONCE * 2.0**-25)
    p, total32, _ = _weights(scores(torch.float32), sink)
    same = (p.div_(total32).to(q.dtype).float() @ v.float()).to(q.dtype)
    return _Found(o, bound, cut, same, lse, nats)


def _weights(
    scores: torch.Tensor, sink: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """exp(score − maximum), its sums (1 for rows without keys), and the log-sum-exps.  `sink`: a
    score that joins sums and maxima."""
    top = scores.amax(-1, keepdim=True)
    if sink is not None:
        top = torch.maximum(top, sink.to(top.dtype))
    blind = top == -math.inf
    weights = scores.sub_(top.masked_fill(blind, 0)).exp_()
    total = weights.sum(-1, keepdim=True)
    if sink is not None:
        total += (sink - top.masked_fill(blind, 0)).exp()
    lse = (top + total.log())[..., 0]
    return weights, total.masked_fill(blind, 1), lse


def change_open(w: Workload, slopes: torch.Tensor | None, rows: slice) -> float | torch.Tensor:
    """How far a soft cap, a hook and ALiBi leave scores of fp32 open besides, in nats: tanh is
    known to a few roundings of 1, what a hook multiplies or adds to a few of its own, in the kernel
    and, where its text is the reference, there; and so is the largest bias of a row."""
    found: float | torch.Tensor = 0.0 if w.softcap is None else w.softcap * 2.0**-22
    if w.score_hook is not None:
        found += largest_term(w.score_hook) * 2.0**-21
    if slopes is not None:
        away = places(w, slopes.device, rows=rows).abs().amax(-1)
        found = found + (slopes[..., 0].double() * away).abs() * 2.0**-22
    return found


def score_open(
    q: torch.Tensor, k: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> torch.Tensor:
    """How far the scores of each row of q are open, in nats, fp64; 0 for a row without keys."""
    steps = q.shape[-1] / ADDED_AT_ONCE
    keys = k.float().transpose(-1, -2)
    sizes = (q.float().abs() @ keys.abs()).mul_(steps + OTHER_ROUNDINGS)
    sizes.add_((q.float() @ keys).abs_(), alpha=steps / 2)
    if hidden is not None:
        sizes.masked_fill_(hidden, 0)
    return sizes.amax(-1).double() * (scale * 2.0**-24)
