"""The backward pass in torch: inputs, and what must come out of them.  Children import it alone.

What must come out is computed in fp64 from Q, K, V and dO alone.  The reference is what
FlashAttention 2 does, in torch: weights from fp32 scores and the given log-sum-exp, the mean of
their slopes from the rounded output, weights and gradients of scores rounded to the dtype for the
products that follow.

A score is not known better than u nats (`operations.forward.torch_side.exact`), nor is the
log-sum-exp, so that a weight is open by a factor of e^(2u).  A gradient is by the root of the sum
of the squares of what that makes of all that it is the sum of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.hooks import hook_of
from fa_tune.core.workload import Workload
from fa_tune.operations.backward.spec import forward_of
from fa_tune.operations.base import NORMAL, Tensors
from fa_tune.operations.forward import torch_side as forward
from fa_tune.operations.forward.torch_side.exact import change_open, score_open
from fa_tune.operations.forward.torch_side.scores import changed_scores, hidden_pairs
from fa_tune.operations.torch_side import Judged

OUTPUTS = ("dq", "dk", "dv")
OF_QUERIES, OF_KEYS = ("q", "o", "do", "dq"), ("k", "v", "dk", "dv")
UNIT = 2.0**-23  # of fp32, in which the log-sum-exp is
MOST_OPEN = 20.0  # nats
SCORES_AT_ONCE = 2**26
DIFFERENCE = 2.0**-7  # of a score: what rounding and a third derivative make of it is about equal


def inputs(workload: Workload, text: str = NORMAL, *, seed: int, **how: Any) -> Tensors:
    """See `operations.torch_side.TorchSide`: those of the forward pass, its results, and a normal
    dO with the strides of O, smaller where scores are large: gradients shall be numbers of fp16."""
    of_forward = forward_of(workload)
    given = dict(forward.inputs(of_forward, text, seed=seed, **how))
    made = forward.expected(of_forward, given, precise=torch.float32)
    q = given["q"]
    generator = torch.Generator(device=q.device).manual_seed(seed + 2)
    shape, extra = (*q.shape[:3], workload.d_v), how.get("extra_heads", 0)
    room = torch.empty((*shape[:2], shape[2] + extra, shape[3]), dtype=q.dtype, device=q.device)[
        :, :, extra:
    ]
    drawn = torch.randn(shape, generator=generator, device=q.device)
    given["o"] = torch.empty_like(room).copy_(made["o"].exact)
    given["lse"] = made["lse"].exact.float().contiguous()
    smaller = max(1.0, workload.scale * math.sqrt(workload.d_head))
    given["do"] = room.copy_(drawn / smaller)
    if workload.lse:
        shape = given["lse"].shape
        given["dlse"] = torch.randn(shape, generator=generator, device=q.device) / smaller
    return given


def expected(
    workload: Workload, inputs: Tensors, *, precise: torch.dtype | None = None
) -> Mapping[str, Judged]:
    """What dQ, dK and dV must be, some rows of a head of a sequence at a time.  Raises
    InvalidConfig for caches."""
    w = workload
    if w.cached:
        raise InvalidConfig(f"there is no reference for the gradients of {w.key}")
    like = {"dq": inputs["q"], "dk": inputs["k"], "dv": inputs["v"]}
    exact, open_, same = (
        {name: torch.zeros(t.shape, dtype=kind, device=t.device) for name, t in like.items()}
        for kind in (precise or torch.float64, torch.float32, torch.float32)
    )
    for one in _sequences(workload):
        given = one.of(inputs)
        of_exact, of_same, of_open = map(one.of, (exact, same, open_))
        for rows in _rows(one.workload, one.batch.start or 0):
            for name, found in _exact(one.workload, given, rows, exact["dq"].dtype).items():
                of_exact[name][rows.of(name)] += found
            made = _reference(one.workload, given, rows)
            for name in OUTPUTS:
                of_same[name][rows.of(name)] += made.gradients[name]
                of_open[name][rows.of(name)] += made.squares[name]
    dtype = inputs["q"].dtype
    found = {name: Judged(exact[name], open_[name].sqrt_()) for name in OUTPUTS}
    return {
        name: replace(judged, reference=judged.errors(same[name].to(dtype)))
        for name, judged in found.items()
    }


@dataclass(frozen=True)
class _Sequence:
    """A sequence of a packed batch, or a whole dense one, as a problem of its own."""

    workload: Workload
    batch: slice
    queries: slice
    keys: slice

    def of(self, tensors: Tensors) -> dict[str, torch.Tensor]:
        """Its parts of tensors."""
        found = dict(tensors)
        for names, rows in ((OF_QUERIES, self.queries), (OF_KEYS, self.keys)):
            found |= {name: tensors[name][:, rows] for name in names if name in tensors}
        for name in ("lse", "dlse"):
            if name in tensors:
                found[name] = tensors[name][..., self.queries]
        if "alibi_slopes" in tensors:
            found["alibi_slopes"] = tensors["alibi_slopes"][self.batch]
        return found


def _sequences(w: Workload) -> Iterator[_Sequence]:
    """Those that have queries and keys."""
    if not w.packed:
        yield _Sequence(w, slice(None), slice(None), slice(None))
        return
    end_q = end_kv = 0
    for number, (q, kv) in enumerate(w.members):
        queries, keys = slice(end_q, end_q + q), slice(end_kv, end_kv + kv)
        end_q, end_kv = queries.stop, keys.stop
        if q and kv:
            yield _Sequence(w.dense(1, q, kv), slice(number, number + 1), queries, keys)


@dataclass(frozen=True)
class _Rows:
    """Some queries of one head, and the head of K and V that they use; `sequence`: the number that
    a hook is told."""

    sequence: int
    batch: int
    head: int
    kv_head: int
    queries: slice

    def of(self, name: str) -> tuple[int, slice, int]:
        """Where their part of a tensor is."""
        if name in OF_QUERIES:
            return self.batch, self.queries, self.head
        return self.batch, slice(None), self.kv_head


def _rows(w: Workload, first: int) -> Iterator[_Rows]:
    step = max(1, SCORES_AT_ONCE // w.seq_len_kv)
    for batch, head in itertools.product(range(w.batch), range(w.heads)):
        for first in range(0, w.seq_len_q, step):
            queries = slice(first, min(first + step, w.seq_len_q))
            yield _Rows(first + batch, batch, head, head * w.kv_heads // w.heads, queries)


@dataclass(frozen=True)
class _Scores:
    """Those of some rows, -inf where hidden; what is hidden; the derivatives by scaled products."""

    scores: torch.Tensor
    hidden: torch.Tensor | None
    slopes: torch.Tensor | float


def _scores(w: Workload, inputs: Tensors, given: Tensors, rows: _Rows) -> _Scores:
    products = (given["q"] @ given["k"].T).mul_(w.scale)
    hidden = hidden_pairs(w, products.device, rows=rows.queries)
    slopes: torch.Tensor | float = 1.0
    if w.softcap is not None:
        slopes = 1 - (products / w.softcap).tanh().square()
    of = (rows.sequence, rows.head)
    scores = changed_scores(products, w, _alibi_slope(inputs, rows), rows=rows.queries, of=of)
    if w.score_hook is not None:
        hooked = partial(changed_scores, workload=w, slopes=None, rows=rows.queries, of=of)
        slopes = _derivative(hooked, products, by_text=hook_of(w.score_hook).twin is None)
    if hidden is not None:
        scores = scores.masked_fill(hidden, -torch.inf)
    return _Scores(scores, hidden, slopes)


def _derivative(
    function: Callable[[torch.Tensor], torch.Tensor], at: torch.Tensor, *, by_text: bool
) -> torch.Tensor:
    """That of a function of each number; of one that is no torch function by differences."""
    if by_text:
        step = at.abs().clamp(min=1) * DIFFERENCE
        return (function(at + step) - function(at - step)) / (2 * step)
    with torch.enable_grad():
        given = at.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(given).sum(), given, allow_unused=True)
    return torch.zeros_like(at) if found is None else found


def _alibi_slope(inputs: Tensors, rows: _Rows) -> torch.Tensor | None:
    """That of a head, [1, 1]."""
    slopes = inputs.get("alibi_slopes")
    return None if slopes is None else slopes[rows.batch, rows.head].view(1, 1)


def _gradients(
    scale: float, given: Tensors, weights: torch.Tensor, changes: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Those of weights, and of scores by `changes`, [queries, keys]."""
    return {
        "dq": changes @ given["k"] * scale,
        "dk": changes.T @ given["q"] * scale,
        "dv": weights.T @ given["do"],
    }


def _grad_lse(inputs: Tensors, rows: _Rows) -> torch.Tensor | float:
    """That of the log-sum-exp of some rows, [rows, 1], or 0."""
    given = inputs.get("dlse")
    return 0.0 if given is None else given[rows.batch, rows.head, rows.queries, None]


def _exact(w: Workload, inputs: Tensors, rows: _Rows, kind: torch.dtype) -> dict[str, torch.Tensor]:
    given = {name: inputs[name][rows.of(name)].to(kind) for name in ("q", "k", "v", "do")}
    made = _scores(w, inputs, given, rows)
    scores = made.scores
    if (sink := inputs.get("sink")) is not None:
        scores = torch.cat((scores, sink[rows.head].to(kind).expand(len(scores), 1)), -1)
    blind = scores.isneginf().all(-1, keepdim=True)
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    weights = weights[:, : w.seq_len_kv]
    slopes = given["do"] @ given["v"].T
    mean = (weights * slopes).sum(-1, keepdim=True) - _grad_lse(inputs, rows)
    return _gradients(w.scale, given, weights, weights * (slopes - mean) * made.slopes)


@dataclass(frozen=True)
class _Made:
    """By the reference, fp32, and the squares of how far that is open."""

    gradients: dict[str, torch.Tensor]
    squares: dict[str, torch.Tensor]


def _reference(w: Workload, inputs: Tensors, rows: _Rows) -> _Made:
    names = ("q", "k", "v", "o", "do")
    dtype = inputs["q"].dtype
    given = {name: inputs[name][rows.of(name)].float() for name in names}
    lse = inputs["lse"][rows.batch, rows.head, rows.queries, None]
    of_scores = _scores(w, inputs, given, rows)
    weights = (of_scores.scores - lse.masked_fill(lse.isneginf(), torch.inf)).exp()
    mean = (given["o"] * given["do"]).sum(-1, keepdim=True) - _grad_lse(inputs, rows)
    slopes = given["do"] @ given["v"].T
    changes = weights * (slopes - mean) * of_scores.slopes
    rounded = (t.to(dtype).float() for t in (weights, changes))
    # By as much a weight may be off.  That of one key is chance to that of another, so that their
    # squares add up.
    nats = score_open(given["q"], given["k"], w.scale, of_scores.hidden)
    nats = 2 * (nats + change_open(w, _alibi_slope(inputs, rows), rows.queries))[:, None]
    nats = nats + 2 * UNIT * lse.nan_to_num(0.0, 0.0, 0.0).abs().double()
    factor = torch.expm1(nats.clamp(max=MOST_OPEN)).float()
    of_weights = (weights * factor).clamp_(max=1)
    of_changes = of_weights * (given["do"].abs() @ given["v"].abs().T + mean.abs())
    of_changes = of_changes * of_scores.slopes
    squares = {name: t.square() for name, t in given.items()}
    spread = _gradients(w.scale**2, squares, of_weights.square(), of_changes.square())
    return _Made(_gradients(w.scale, given, *rounded), spread)
