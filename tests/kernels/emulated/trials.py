"""Problems with all that a launch is given besides, judged by the product's own criterion
(`fa_tune.operations.torch_side`) and by what must be left as it was."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from unittest import mock

import numpy as np
import torch

from fa_tune.core.workload import DType, Workload
from fa_tune.operations.base import CheckCase, Tensors
from fa_tune.operations.forward.torch_side import exact
from fa_tune.operations.torch_side import Judged, judge
from fa_tune.operations.verification import fault
from tests.described import DeviceFacts
from tests.gpu.score_hooks import HOOKS
from tests.kernels.emulated.cached_problems import Cache
from tests.kernels.emulated.emulation import Emulated, Schedule
from tests.kernels.emulated.packed_problems import PackedProblem
from tests.kernels.emulated.problems import GUARD, Bits, Problem, Room, to_float
from tests.tensors import qkv

# Of each hook, as `fa_tune.operations.forward.torch_side.hook_twin.largest_term` has it.
LARGEST_TERMS = dict(zip(HOOKS, (0.0, 0.0, 100.0, 2.0), strict=True))
TORCH = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}


@dataclass(frozen=True)
class Result:
    """What a launch wrote: O with its surroundings, the log-sum-exp with guards."""

    out: Room
    lse: np.ndarray
    wrote_elsewhere: bool = False  # to K or V, or not what was to be written there

    def bits(self) -> bytes:
        """All of it."""
        return self.out.whole.tobytes() + self.lse.tobytes()


@dataclass(frozen=True)
class Said:
    """What is wrong with a result, in words; `share`: its root mean square error by what the
    product allows."""

    faults: tuple[str, ...]
    share: float


class Trial(Protocol):
    """A problem that a kernel may be launched on any number of times."""

    name: str

    def run(self, kernel: Emulated, schedule: Schedule) -> Result:
        """A launch.  Raises EmulationFailed."""

    def judge(self, result: Result) -> Said:
        """What is to be said of a launch's result."""


def tensor_of(bits: Bits, dtype: DType) -> torch.Tensor:
    """A copy."""
    return torch.from_numpy(np.array(bits, order="C").view(np.int16)).view(TORCH[dtype])


def inputs_of(problem: Problem, workload: Workload) -> Tensors:
    """A problem's, as far as the workload has them."""
    return qkv(
        *(tensor_of(t, workload.dtype) for t in (problem.q, problem.k, problem.v)),
        sink=torch.from_numpy(problem.sink) if workload.sink else None,
        alibi_slopes=torch.from_numpy(problem.slopes) if workload.alibi else None,
    )


def _must_be(workload: Workload, inputs: Tensors) -> Mapping[str, Judged]:
    """What every output must be.  What a hook says of itself only a GPU is asked."""
    with mock.patch.object(exact, "largest_term", LARGEST_TERMS.__getitem__):
        return exact.expected(workload, inputs)


def by_criterion(workload: Workload, inputs: Tensors, o: Bits, lse: np.ndarray) -> Said:
    """What the product says of O [batch, seq, heads, d_v] and the log-sum-exp."""
    outputs = {"o": tensor_of(o, workload.dtype)}
    if workload.lse:
        outputs["lse"] = torch.from_numpy(np.ascontiguousarray(lse))
    must_be = _must_be(workload, inputs)
    case = judge(CheckCase(workload), must_be, outputs)
    said = fault(case)
    if said and workload.lse:
        off = must_be["lse"].errors(outputs["lse"])
        said += f" (log-sum-exp off by {off.largest:.3g})" if off.largest else ""
    limit = case.rms_limit or 0.0
    share = (case.rms_error or 0.0) / limit if math.isfinite(limit) and limit > 0 else 0.0
    return Said((said,) if said else (), share)


def _beside(problem: Problem, result: Result) -> list[str]:
    """What was written where nothing is to be written."""
    w, guards = problem.workload, np.r_[result.lse[:GUARD], result.lse[-GUARD:]]
    said = [
        ("it wrote beside O", result.out.is_clean_outside()),
        ("it wrote beside the log-sum-exp", bool(np.isnan(guards).all())),
        ("it wrote a log-sum-exp", w.lse or bool(np.isnan(result.lse).all())),
        ("it wrote to K or V", not result.wrote_elsewhere),
    ]
    return [what for what, fine in said if not fine]


@dataclass(frozen=True)
class Rows:
    """Rows [batch, heads, queries] of which something else is known than a number: `nan` must be
    NaN, `open` may be anything."""

    nan: np.ndarray
    open: np.ndarray

    @classmethod
    def none(cls, w: Workload) -> Rows:
        """Where all are numbers."""
        nothing = np.zeros((w.batch, w.heads, w.seq_len_q), bool)
        return cls(nothing, nothing)


@dataclass(frozen=True)
class DenseTrial:
    """A dense problem.  `judged`: one with the same results whose inputs are all numbers."""

    name: str
    problem: Problem
    device: DeviceFacts
    judged: Problem
    rows: Rows

    def run(self, kernel: Emulated, schedule: Schedule) -> Result:
        return Result(*kernel.launch(self.problem, schedule, device=self.device))

    def judge(self, result: Result) -> Said:
        w, rows = self.judged.workload, self.rows
        o = np.ascontiguousarray(result.out.inside).transpose(0, 2, 1, 3).copy()
        lse = result.lse[GUARD:-GUARD].reshape(rows.nan.shape).copy()
        found = _beside(self.problem, result)
        there = to_float(o[rows.nan], w.dtype)
        if not np.isnan(there).all():
            found.append(f"{int((~np.isnan(there)).sum())} numbers in rows that see a NaN")
        # These rows become right.
        other = rows.nan | rows.open
        inputs = inputs_of(self.judged, w)
        if other.any():
            must_be = _must_be(w, inputs)
            bits = must_be["o"].exact.to(TORCH[w.dtype]).transpose(1, 2).contiguous()
            o[other] = bits.view(torch.int16).numpy().view(np.uint16)[other]
            lse[other] = must_be["lse"].exact.float().numpy()[other]
        said = by_criterion(w, inputs, o.transpose(0, 2, 1, 3), lse)
        return Said((*found, *said.faults), said.share)


@dataclass(frozen=True)
class PackedTrial:
    """A packed batch."""

    name: str
    problem: PackedProblem
    device: DeviceFacts

    def run(self, kernel: Emulated, schedule: Schedule) -> Result:
        return Result(*kernel.launch(self.problem, schedule, device=self.device))

    def judge(self, result: Result) -> Said:
        p = self.problem
        q_rows, kv_rows = _rows(p.begin_q, p.used_q), _rows(p.begin_kv, p.used_kv)
        members = [list(map(str, used)) for used in (p.used_q, p.used_kv)]
        used = dataclasses.replace(
            *(p.workload,), total_q=0, total_kv=0, lengths="x".join(map("+".join, members))
        )
        alone = dataclasses.replace(
            p, workload=used, q=p.q[:, q_rows], k=p.k[:, kv_rows], v=p.v[:, kv_rows]
        )
        o, lse = result.out.inside, result.lse[GUARD:-GUARD].reshape(p.workload.heads, -1)
        found = _beside(p, result)
        nobodys = np.ones(o.shape[1], bool)
        nobodys[q_rows] = False
        if not np.isnan(to_float(o[:, nobodys], used.dtype)).all():
            found.append("it wrote rows of no sequence")
        if not np.isnan(lse[:, nobodys]).all():
            found.append("it wrote a log-sum-exp of no row")
        if not len(q_rows):
            return Said(tuple(found), 0.0)
        said = by_criterion(used, inputs_of(alone, used), o[:, q_rows], lse[None][..., q_rows])
        return Said((*found, *said.faults), said.share)


def _rows(begin: np.ndarray, used: np.ndarray) -> np.ndarray:
    """Which rows are used, in the order of sequences."""
    parts = [np.arange(first, first + n) for first, n in zip(begin, used, strict=False)]
    return np.concatenate(parts).astype(int)


@dataclass(frozen=True)
class CachedTrial:
    """Few queries after a cache.  `problem` is what is launched but for K and V; `judged` has K and
    V as `cache` has them, in the type of Q."""

    name: str
    problem: Problem
    device: DeviceFacts
    cache: Cache
    judged: Problem

    def run(self, kernel: Emulated, schedule: Schedule) -> Result:
        given = self.cache.given()
        problem = dataclasses.replace(self.problem, k=given.k, v=given.v)
        out, lse = kernel.launch(problem, schedule, given.inputs, device=self.device)
        return Result(out, lse, wrote_elsewhere=not given.is_right())

    def judge(self, result: Result) -> Said:
        w = self.judged.workload
        lse = result.lse[GUARD:-GUARD].reshape(w.batch, w.heads, w.seq_len_q)
        said = by_criterion(w, inputs_of(self.judged, w), result.out.inside, lse)
        return Said((*_beside(self.problem, result), *said.faults), said.share)
