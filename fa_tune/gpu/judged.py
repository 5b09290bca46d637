"""What an operation must give, in fp64; what the same computation in a kernel's own precision makes
of it; and how far fp32 scores leave it open.  `reference_of` has it under the operation's name.

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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from fa_tune.core import inputs
from fa_tune.core.model import CaseError
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.gpu.caches import sequence
from fa_tune.gpu.hook_twin import largest_term
from fa_tune.gpu.reference import (
    Inputs,
    changed_scores,
    hidden_pairs,
    make_inputs,
    parts,
    places,
)
from fa_tune.operations.base import NORMAL, SINK_FIRST, SINK_LAST, SINK_NATS, CheckCase, Figures
from fa_tune.operations.forward.spec import LSE_TOLERANCE
from fa_tune.operations.verification import case_error

ADDED_AT_ONCE = 16  # products, by a tensor core
OTHER_ROUNDINGS = 8  # scaling, and what a run of luck adds to the mean
SCORES_AT_ONCE = 2**26  # half a GiB in fp64, several times over
SINK_QUERY = 4.0  # the channel of every query that a sink answers to


@dataclass(frozen=True)
class Judged:
    """An output that must come out, fp64; how far each element is open; and the errors of the
    same-precision reference beyond that (None: nothing more is allowed)."""

    exact: torch.Tensor
    open: torch.Tensor
    reference: Figures | None = None

    @property
    def size(self) -> Figures:
        """Of what must come out."""
        return Figures(float(self.exact.abs().max()), float(self.exact.square().mean().sqrt()))

    def errors(self, out: torch.Tensor) -> Figures:
        """How far an output is off, beyond what is open; NaN if an element was never written, or
        is NaN.  −inf is right where it must come out.  A row is what the last dimension holds."""
        excess = (out.double() - self.exact).abs_().sub_(self.open).clamp_(min=0)
        infinite = self.exact.isinf()
        excess = torch.where(infinite & (out == self.exact), 0.0, excess)
        of_rows = excess.square().mean(-1)
        return Figures(float(excess.max()), float(of_rows.mean().sqrt()), _alike(of_rows))


def _alike(shares: torch.Tensor) -> float:
    """How many equal shares vary as much in their sum as these: all of them if they are alike, 1 if
    all but one are nothing."""
    largest = float(shares.max())
    if not largest > 0:
        return float(shares.numel())
    shares = shares / largest
    return float(shares.sum().square() / shares.square().sum())


def judge(
    case: CheckCase, judged: Mapping[str, Judged], outputs: Mapping[str, torch.Tensor]
) -> CaseError:
    """Whether outputs are right.  One that has no reference and is further off than is open counts
    as an infinite error."""
    worst = Figures(0.0, 0.0)
    reference = size = Figures(0.0, 0.0)
    for name, out in outputs.items():
        found = judged[name].errors(out)
        theirs = judged[name].reference
        if theirs is not None:
            reference, size = theirs, judged[name].size
        elif found.largest > 0:
            found = Figures(math.inf, math.inf)
        worst = Figures(_larger(worst.largest, found.largest), _larger(worst.rms, found.rms))
    return case_error(case, worst, reference, size)


def _larger(a: float, b: float) -> float:
    """The larger of two; NaN if one is."""
    return math.nan if math.isnan(a) or math.isnan(b) else max(a, b)


class Reference(Protocol):
    """What torch knows of an operation."""

    def inputs(
        self, case: CheckCase, *, seed: int, mean: float, extra_heads: int, device: str
    ) -> Inputs:
        """Random inputs of a case, see `make_inputs`.  Raises InvalidConfig for an unknown word."""

    def judged(self, inputs: Inputs, workload: Workload) -> Mapping[str, Judged]:
        """What every output must be, by its name."""


class ForwardReference:
    """The forward pass: `o` and `lse`."""

    def inputs(
        self, case: CheckCase, *, seed: int, mean: float, extra_heads: int, device: str
    ) -> Inputs:
        own = case.inputs in (NORMAL, SINK_FIRST, SINK_LAST)
        drawn = make_inputs(
            case.workload,
            seed=seed,
            device=device,
            mean=mean if own else 0.0,
            extra_heads=extra_heads,
            spec=inputs.NORMAL if own else inputs.InputSpec.parse(case.inputs),
        )
        if case.inputs not in (SINK_FIRST, SINK_LAST):
            return drawn
        drawn = drawn.wide()
        drawn.q[..., 0] = SINK_QUERY
        sink = 0 if case.inputs == SINK_FIRST else -1
        drawn.k[:, sink, :, 0] = SINK_NATS / (SINK_QUERY * case.workload.scale)
        return drawn.narrow() if case.workload.kv_e4m3 else drawn

    def judged(self, inputs: Inputs, workload: Workload) -> Mapping[str, Judged]:
        return judged_forward(inputs, workload)


_REFERENCES: Mapping[str, Reference] = {FORWARD: ForwardReference()}


def reference_of(workload: Workload) -> Reference:
    """The reference of a workload's operation."""
    return _REFERENCES[workload.op]


# The forward pass -------------------------------------------------------------------------------


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


def judged_forward(
    inputs: Inputs, w: Workload, *, precise: torch.dtype = torch.float64
) -> dict[str, Judged]:
    """What `o` and `lse` must be, in blocks that fit the memory at any length.

    `precise` float32 takes a fraction of the time on GPUs that are slow in fp64.  It is near
    enough while scores are some tens of nats, where its errors are 1e-2 of the dtype's rounding.
    """
    inputs = inputs.wide()
    if w.packed:
        return _judged_packed(inputs, w, precise)
    if w.cached:
        return _judged_cache(inputs, w, precise)
    device, shape = inputs.q.device, (*inputs.q.shape[:3], inputs.v.shape[3])
    exact = torch.empty(shape, dtype=precise, device=device)
    open_ = torch.empty(shape, dtype=torch.float32, device=device)
    cut = torch.empty(shape, dtype=torch.float32, device=device)
    same = torch.empty(shape, dtype=inputs.q.dtype, device=device)
    rows = (w.batch, w.heads, w.seq_len_q)
    lse = torch.empty(rows, dtype=precise, device=device)
    lse_open = torch.empty(rows, dtype=torch.float64, device=device)
    for part in _parts(w):
        where = (part.batch, part.rows, part.heads)
        by_head = (part.batch, part.heads, part.rows)
        found = _forward_part(inputs, w, part, precise)
        exact[where] = found.exact.flatten(0, 1).transpose(0, 1)
        open_[where] = found.open.flatten(0, 1).transpose(0, 1).float()
        cut[where] = found.cut.flatten(0, 1).transpose(0, 1).float()
        same[where] = found.same.flatten(0, 1).transpose(0, 1)
        lse[by_head] = found.lse.flatten(0, 1)
        lse_open[by_head] = found.score_open.flatten(0, 1).clamp(min=LSE_TOLERANCE)
    return {
        "o": Judged(exact, open_ + cut, Judged(exact, open_).errors(same)),
        "lse": Judged(lse, lse_open),
    }


def _judged_packed(inputs: Inputs, w: Workload, precise: torch.dtype) -> dict[str, Judged]:
    """Sequence by sequence; rows without keys are 0, their log-sum-exp is -inf or the sink.  The
    reference's errors are those of all sequences together."""
    device, shape = inputs.q.device, (*inputs.q.shape[:3], inputs.v.shape[3])
    exact = torch.zeros(shape, dtype=precise, device=device)
    open_ = torch.zeros(shape, dtype=torch.float32, device=device)
    lse = torch.full((1, w.heads, w.total_q), -torch.inf, dtype=precise, device=device)
    if inputs.sink is not None:
        lse[:] = inputs.sink[:, None]
    lse_open = torch.full(lse.shape, LSE_TOLERANCE, dtype=torch.float64, device=device)
    theirs = []
    for part in parts(inputs, w):
        found = judged_forward(part.inputs, part.workload, precise=precise)
        exact[:, part.rows], open_[:, part.rows] = found["o"].exact, found["o"].open
        lse[..., part.rows], lse_open[..., part.rows] = found["lse"].exact, found["lse"].open
        if (reference := found["o"].reference) is not None:
            theirs.append((reference, part.rows.stop - part.rows.start))
    rows = sum(n for _, n in theirs)
    squares = sum(figures.rms**2 * n for figures, n in theirs)
    largest = max((figures.largest for figures, _ in theirs), default=0.0)
    alike = sum(figures.rows for figures, _ in theirs)
    # Of all rows, those without keys too, which are exact.
    rms = math.sqrt(squares / max(1, w.total_q)) if rows else 0.0
    return {
        "o": Judged(exact, open_, Figures(largest, rms, max(1.0, alike))),
        "lse": Judged(lse, lse_open),
    }


def _judged_cache(inputs: Inputs, w: Workload, precise: torch.dtype) -> dict[str, Judged]:
    """Sequence by sequence, as `_judged_packed`; one without keys has rows without."""
    device, shape = inputs.q.device, (*inputs.q.shape[:3], inputs.v.shape[3])
    exact = torch.zeros(shape, dtype=precise, device=device)
    open_ = torch.zeros(shape, dtype=torch.float32, device=device)
    lse = torch.full((w.batch, w.heads, w.seq_len_q), -torch.inf, dtype=precise, device=device)
    if inputs.sink is not None:
        lse[:] = inputs.sink[:, None]
    lse_open = torch.full(lse.shape, LSE_TOLERANCE, dtype=torch.float64, device=device)
    theirs = []
    for number, (q, kv) in enumerate(w.members):
        if not kv:
            continue
        one = slice(number, number + 1)
        k, v = (sequence(t, inputs.page_table, number, kv) for t in (inputs.k, inputs.v))
        slopes = None if inputs.alibi_slopes is None else inputs.alibi_slopes[one]
        own = Inputs(inputs.q[one], k, v, sink=inputs.sink, alibi_slopes=slopes)
        found = judged_forward(own, w.dense(1, q, kv), precise=precise)
        exact[one], open_[one] = found["o"].exact, found["o"].open
        lse[one], lse_open[one] = found["lse"].exact, found["lse"].open
        if (reference := found["o"].reference) is not None:
            theirs.append(reference)
    largest = max((figures.largest for figures in theirs), default=0.0)
    rms = math.sqrt(sum(figures.rms**2 for figures in theirs) / w.batch)
    alike = sum(figures.rows for figures in theirs)
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


def _forward_part(inputs: Inputs, w: Workload, part: _Part, precise: torch.dtype) -> _Found:
    group = w.heads // w.kv_heads
    q = inputs.q[part.batch, part.rows, part.heads].transpose(0, 1).unflatten(0, (-1, group))
    k, v = (t[part.batch, :, part.kv_heads].transpose(0, 1)[:, None] for t in (inputs.k, inputs.v))
    hidden = hidden_pairs(w, q.device, rows=part.rows)
    exact_v = v.to(precise)
    sink, slopes = inputs.sink, inputs.alibi_slopes
    if sink is not None:
        sink = sink[part.heads].unflatten(0, (-1, group))[..., None, None]
    if slopes is not None:
        slopes = slopes[part.batch, part.heads].unflatten(0, (-1, group))[..., None, None]

    heads = torch.arange(w.heads, device=q.device)[part.heads]
    heads = heads.unflatten(0, (-1, group))[..., None, None]

    element = inputs.first_element + part.batch

    def scores(dtype: torch.dtype) -> torch.Tensor:
        products = (q.to(dtype) @ k.to(dtype).transpose(-1, -2)).mul_(w.scale)
        found = changed_scores(products, w, slopes, rows=part.rows, of=(element, heads))
        return found if hidden is None else found.masked_fill_(hidden, -math.inf)

    weights, total, lse = _weights(scores(precise), sink)
    o = weights @ exact_v / total
    spread = (weights @ exact_v.square() / total).sub_(o.square()).clamp_(min=0).sqrt_()
    others = (total - 1).clamp_(min=0) / total
    del weights
    score_open = _score_open(q, k, w.scale, hidden) + _change_open(w, slopes, part.rows)
    u = score_open[..., None].clamp(max=80).to(precise)
    highest, lowest = v.amax(-2, keepdim=True), v.amin(-2, keepdim=True)
    if sink is not None:  # a key whose value is 0
        highest, lowest = highest.clamp(min=0), lowest.clamp(max=0)
    value_range = (highest - lowest).to(precise)
    most = (others * u.exp()).clamp_(max=1) * value_range
    bound = torch.minimum(torch.expm1(u) * spread, most)
    cut = o.abs() * (w.seq_len_kv / ADDED_AT_ONCE * 2.0**-25)
    p, total32, _ = _weights(scores(torch.float32), sink)
    same = (p.div_(total32).to(q.dtype).float() @ v.float()).to(q.dtype)
    return _Found(o, bound, cut, same, lse, score_open)


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


def _change_open(w: Workload, slopes: torch.Tensor | None, rows: slice) -> float | torch.Tensor:
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


def _score_open(
    q: torch.Tensor, k: torch.Tensor, scale: float, hidden: torch.Tensor | None
) -> torch.Tensor:
    """How far the scores of each row are open, in nats, fp64; 0 for a row without keys."""
    steps = q.shape[-1] / ADDED_AT_ONCE
    keys = k.float().transpose(-1, -2)
    sizes = (q.float().abs() @ keys.abs()).mul_(steps + OTHER_ROUNDINGS)
    sizes.add_((q.float() @ keys).abs_(), alpha=steps / 2)
    if hidden is not None:
        sizes.masked_fill_(hidden, 0)
    return sizes.amax(-1).double() * (scale * 2.0**-24)
