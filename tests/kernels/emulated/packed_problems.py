"""Packed batches in host memory, with NaN between the sequences and around them, and what must come
out of each, in fp64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from fa_tune.core.workload import Workload
from fa_tune.operations.forward.spec import sequences
from tests.kernels.emulated.problems import FLOOR, GUARD, Problem, Room, attention, to_float

LIMIT_TIMES = 2


@dataclass(frozen=True)
class PackedProblem(Problem):
    """Sequence i has rows begin_q[i] to begin_q[i] + used_q[i] of the tensors' first batch element,
    and so for keys."""

    begin_q: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    begin_kv: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    used_q: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    used_kv: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))

    @classmethod
    def of(cls, workload: Workload, layout: str, seed: int, gap: int | np.ndarray) -> PackedProblem:
        """Random inputs.  With a `gap` every sequence has as many rows behind it that are not used,
        which hold NaN; [batch, 2]: so many of Q, and of K and V."""
        lengths = np.array(workload.members, np.int32)
        steps = np.concatenate((np.zeros((1, 2), np.int32), np.cumsum(lengths + gap, 0)))
        begin_q, begin_kv = np.ascontiguousarray(steps.T.astype(np.int32))
        totals = {"total_q": int(begin_q[-1]), "total_kv": int(begin_kv[-1]), "lengths": ""}
        whole = replace(
            *(workload,), batch=1, packed=False, **{**totals, "total_q": 0, "total_kv": 0},
            seq_len_q=totals["total_q"], seq_len_kv=totals["total_kv"],
        )  # fmt: skip
        dense = Problem.draw(whole, layout, seed)
        for tensor, begin, used in (
            (dense.q, begin_q, lengths[:, 0]),
            (dense.k, begin_kv, lengths[:, 1]),
            (dense.v, begin_kv, lengths[:, 1]),
        ):
            tensor[:, ~_used(tensor.shape[1], begin, used)] = 0xFFFF
        packed = replace(workload, **totals) if np.any(gap) else workload
        columns = np.ascontiguousarray(lengths.T)
        shape = (workload.batch, workload.heads)
        slopes = np.exp2(-8 * np.random.default_rng(seed).random(shape, np.float32))
        return cls(
            *(packed, dense.q, dense.k, dense.v, dense.out_layout, dense.sink, slopes),
            *(begin_q, begin_kv, columns[0], columns[1]),
        )

    @property
    def has_gaps(self) -> bool:
        """Whether not all rows are used."""
        return bool(self.used_q.sum() < self.q.shape[1] or self.used_kv.sum() < self.k.shape[1])

    def tensors(self) -> dict[str, np.ndarray]:
        found = {"cu_seqlens_q": self.begin_q, "cu_seqlens_kv": self.begin_kv}
        if self.has_gaps:
            found |= {"used_q": self.used_q, "used_kv": self.used_kv}
        return super().tensors() | found

    def parts(self) -> Iterator[tuple[Problem, slice, slice]]:
        """The sequences that have queries and keys, as problems of their own, and where their rows
        are."""
        spans = zip(self.begin_q, self.used_q, self.begin_kv, self.used_kv, strict=False)
        for element, (first, n, first_key, n_keys) in enumerate(spans):
            rows, keys = slice(first, first + n), slice(first_key, first_key + n_keys)
            if n and n_keys:
                yield self.alone(element, rows, keys), rows, keys

    def alone(self, element: int, rows: slice, keys: slice) -> Problem:
        n, n_keys = rows.stop - rows.start, keys.stop - keys.start
        listed = replace(
            self.workload, total_q=0, total_kv=0, packed=False, lengths=f"{n}x{n_keys}"
        )
        (alone,) = sequences(listed)
        return Problem(
            *(alone, self.q[:, rows], self.k[:, keys], self.v[:, keys]),
            *("plain", self.sink, self.slopes[element : element + 1]),
        )

    def used_rows(self) -> np.ndarray:
        """Which rows of Q are of a sequence, bool."""
        return _used(self.q.shape[1], self.begin_q, self.used_q)

    def used_keys(self) -> np.ndarray:
        """The same of K and V."""
        return _used(self.k.shape[1], self.begin_kv, self.used_kv)

    def exact(self) -> tuple[np.ndarray, np.ndarray]:
        """O and the log-sum-exp in fp64, NaN in rows of no sequence."""
        w = self.workload
        o = np.zeros((*self.q.shape[:3], w.d_v))
        lse = np.full((1, w.heads, w.total_q), -np.inf)
        if w.sink:
            lse[:] = self.sink[:, None]
        o[:, ~self.used_rows()] = lse[:, :, ~self.used_rows()] = np.nan
        for part, rows, _ in self.parts():
            o[:, rows], _, lse[:, :, rows] = attention(part)
        return o, lse

    def lse(self) -> np.ndarray:
        w = self.workload
        return np.full(w.heads * w.total_q + 2 * GUARD, np.nan, np.float32)


def _used(rows: int, begin: np.ndarray, used: np.ndarray) -> np.ndarray:
    counted = np.zeros(rows, bool)
    for first, n in zip(begin, used, strict=False):
        counted[first : first + n] = True
    return counted


def faults(problem: PackedProblem, out: Room, lse: np.ndarray) -> list[str]:
    """What is wrong with a launch's results, in words; see `problems.faults`."""
    w = problem.workload
    exact = np.full(problem.q.shape, np.nan)
    same = np.full(problem.q.shape, np.nan)
    exact_lse = np.full((w.heads, w.total_q), np.nan)
    spans = zip(problem.begin_q, problem.used_q, problem.begin_kv, problem.used_kv, strict=False)
    for element, (first, n, first_key, n_keys) in enumerate(spans):
        rows, keys = slice(first, first + n), slice(first_key, first_key + n_keys)
        if not n_keys:
            exact[:, rows] = same[:, rows] = 0.0
            exact_lse[:, rows] = problem.sink[:, None] if w.sink else -np.inf
        elif n:
            found = attention(problem.alone(element, rows, keys), element)
            exact[:, rows], same[:, rows] = found[0], found[1]
            exact_lse[:, rows] = found[2][0]
    given = to_float(out.inside, w.dtype)
    unused = np.isnan(exact)
    error = float(np.nanmax(np.abs(given - exact), initial=0.0, where=~unused))
    limit = LIMIT_TIMES * float(np.nanmax(np.abs(same - exact))) + FLOOR[w.dtype]
    inside = lse[GUARD:-GUARD].reshape(exact_lse.shape)
    said = [
        (f"error {error:.3g} exceeds {limit:.3g}", error <= limit),
        ("NaN where there are rows", not np.isnan(given[~unused]).any()),
        ("it wrote beside O", out.is_clean_outside()),
        ("it wrote rows of no sequence", bool(np.isnan(given[unused]).all())),
        ("it wrote beside the log-sum-exp", bool(np.isnan(lse[[0, GUARD - 1, -GUARD, -1]]).all())),
    ]
    if w.lse:
        there = np.isfinite(exact_lse)
        off = np.abs(inside[there] - exact_lse[there]) / (1 + np.abs(exact_lse[there]))
        said += [
            ("the log-sum-exp is off", bool((off <= 1e-3).all())),
            ("-inf is missing", bool(np.isneginf(inside[np.isneginf(exact_lse)]).all())),
            ("a log-sum-exp of no row", bool(np.isnan(inside[np.isnan(exact_lse)]).all())),
        ]
    return [what for what, fine in said if not fine]
