"""Scores that are hard to get right: dominant keys, growth from block to block, ties, infinities,
scales far from 1.  Heights are in nats, before soft caps and hooks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from fa_tune.core.workload import Workload
from tests.kernels.emulated.problems import NAN, Problem, to_bits, to_float
from tests.kernels.emulated.trials import Rows

PATTERNS = (
    *("sink_first", "sink_last", "sink_anywhere", "two_sinks", "sink_of_value_0", "own"),
    *("mild_own", "falling", "rising", "steps", "equal", "no_query", "negative", "far_positive"),
    *("peaked", "scale", "hidden_keys", "nan_key", "infinite_key", "infinite_query", "nan_query"),
)
HEIGHTS = (6.0, 32.0)
UNIT = 8.0  # Q where K has heights: a power of two
BLOCK = 64  # keys that have a height together
FAR = 1e4  # nats by which all scores are shifted


@dataclass(frozen=True)
class Hard:
    """A problem with the same results whose inputs are all numbers, and the rows for which there
    are none."""

    judged: Problem
    rows: Rows


def draw_hard(problem: Problem, pattern: str, seed: int) -> Hard:
    """Gives the problem's tensors, which no layout shares, scores of a pattern."""
    w, dice = problem.workload, np.random.default_rng(seed)
    q, k, v = (np.array(to_float(t, w.dtype)) for t in (problem.q, problem.k, problem.v))
    rows = Rows.none(w)
    kept = np.ones(w.seq_len_kv, bool)
    low, high = HEIGHTS
    height = dice.uniform(low, high, (w.batch, w.kv_heads)) / w.scale / UNIT
    if pattern in ("sink_first", "sink_last", "sink_anywhere", "two_sinks", "sink_of_value_0"):
        noise = dice.choice((0.05, 0.3, 1.0))
        q *= noise
        q[..., 0], k[..., 0] = UNIT, 0.0
        sinks = {"sink_first": [0], "sink_last": [w.seq_len_kv - 1]}.get(pattern)
        if sinks is None:
            sinks = dice.integers(0, w.seq_len_kv, 2 if pattern == "two_sinks" else 1).tolist()
            if pattern == "sink_of_value_0":
                sinks = [int(dice.choice((0, w.seq_len_kv - 1)))]
        for sink in sinks:
            k[:, sink, :, 0] = height
            if pattern == "sink_of_value_0":
                v[:, sink] = 0.0
    elif pattern in ("own", "mild_own"):
        q *= 0.1
        k /= np.sqrt(np.square(k).sum(-1, keepdims=True))
        own = dice.permutation(np.resize(np.arange(w.seq_len_kv), w.seq_len_q))
        most = high if pattern == "own" else 10.0
        heights = dice.uniform(low, most, (w.batch, w.seq_len_q, w.heads, 1))
        q += heights / w.scale * np.repeat(k[:, own], w.heads // w.kv_heads, axis=2)
    elif pattern in ("falling", "rising", "steps"):
        block = np.arange(w.seq_len_kv) // BLOCK
        step = dice.choice((1.0, 3.0, 12.0, 40.0))
        levels = {"falling": -block, "rising": block}.get(pattern)
        if levels is None:
            levels = dice.permutation(block.max() + 1)[block]
        q[..., 0] = UNIT
        k[..., 0] = (step * (levels - levels.max()) / w.scale / UNIT)[None, :, None]
    elif pattern == "equal":
        k[:] = k[:, :1]
    elif pattern == "no_query":
        q[:] = 0.0
    elif pattern in ("negative", "far_positive"):
        sign = -1 if pattern == "negative" else 1
        q[..., 0] = 128.0
        k[..., 0] = sign * FAR / w.scale / 128.0
    elif pattern == "peaked":
        q *= dice.choice((3.0, 6.0, 12.0))
    elif pattern == "hidden_keys" and _may_lack_keys(w):
        many = int(dice.integers(1, w.seq_len_kv))
        hidden = np.arange(many) if _has_places(w) else dice.permutation(w.seq_len_kv)[:many]
        kept[hidden] = False
        q[..., 0] = 0.5 + np.abs(q[..., 0])
    elif pattern in ("nan_key", "infinite_key", "nan_query", "infinite_query"):
        return _spoilt(problem, pattern, dice)
    for tensor, values in ((problem.q, q), (problem.k, k), (problem.v, v)):
        tensor[...] = to_bits(values, w.dtype)
    if kept.all():
        return Hard(problem, rows)
    judged = dataclasses.replace(
        problem,
        workload=_without_keys(w, int(kept.sum())),
        k=problem.k[:, kept],
        v=problem.v[:, kept],
    )
    k[:, ~kept, :, 0] = -np.inf
    problem.k[...] = to_bits(k, w.dtype)
    blind = rows
    if w.causal:  # rows whose keys are all of that score
        last = np.arange(w.seq_len_q) + w.diagonal
        none = (last >= 0) & (last < w.seq_len_kv - kept.sum())
        blind = Rows(rows.nan, np.broadcast_to(none, rows.nan.shape))
    return Hard(judged, blind)


def _has_places(w: Workload) -> bool:
    return w.causal or w.alibi


def _may_lack_keys(w: Workload) -> bool:
    """Whether a score of -inf is as good as no key, and it is known what remains."""
    aligned = w.bottom_right or w.seq_len_q == w.seq_len_kv or not _has_places(w)
    window = w.window_left is not None or w.window_right is not None
    plain = w.softcap is None and w.score_hook is None and not window
    return plain and aligned and w.seq_len_kv > 1 and not (w.alibi and not w.causal)


def _without_keys(w: Workload, keys: int) -> Workload:
    return dataclasses.replace(w, seq_len_kv=keys, bottom_right=w.causal)


def _spoilt(problem: Problem, pattern: str, dice: np.random.Generator) -> Hard:
    """One key of one head of K, or one query of one head, with an element that is no number."""
    w = problem.workload
    judged = dataclasses.replace(problem, q=problem.q.copy(), k=problem.k.copy())
    batch, channel = int(dice.integers(w.batch)), int(dice.integers(w.d_head))
    no_number = NAN if pattern.startswith("nan") else int(to_bits(np.array([np.inf]), w.dtype)[0])
    rows = Rows.none(w)
    hit = rows.nan.copy()
    if pattern.endswith("query"):
        query, head = int(dice.integers(w.seq_len_q)), int(dice.integers(w.heads))
        problem.q[batch, query, head, channel] = no_number
        hit[batch, head, query] = _sees(w)[query].any()
    else:
        key, head = int(dice.integers(w.seq_len_kv)), int(dice.integers(w.kv_heads))
        problem.k[batch, key, head, channel] = no_number
        group = w.heads // w.kv_heads
        hit[batch, head * group : (head + 1) * group] = _sees(w)[:, key]
    return Hard(judged, Rows(hit, rows.open) if no_number == NAN else Rows(rows.nan, hit))


def _sees(w: Workload) -> np.ndarray:
    """Which keys each query sees."""
    place = np.arange(w.seq_len_kv) - np.arange(w.seq_len_q)[:, None] - w.diagonal
    right = 0 if w.causal else w.window_right
    seen = np.ones(place.shape, bool)
    if right is not None:
        seen &= place <= right
    if w.window_left is not None:
        seen &= place >= -w.window_left
    return seen
