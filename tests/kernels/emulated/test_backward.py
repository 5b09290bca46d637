"""The sm90 backward kernels on the host: right whatever the schedule.

Some kernels; `python -m tests.kernels.emulated.backward` draws any number of them.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fa_tune.core.workload import DType, Workload
from tests.kernels.emulated.backward import faults, judge, launch, share
from tests.kernels.emulated.backward_kernels import Kernel
from tests.kernels.emulated.backward_problems import BackwardProblem, draw_problem, make_problem
from tests.kernels.emulated.emulation import Schedule
from tests.kernels.emulated.problems import NAN, attention, to_float

FP16, BF16 = DType.FP16, DType.BF16
# Together: one pass and two, each of both head dimensions, one tile and several a CTA, rings of two
# and three, turns and not, all masks.
KERNELS = (
    Kernel(FP16, 128, q_stages=3, traits="causal+ragged"),
    Kernel(BF16, 64, dynamic=True, traits="causal+window+ragged"),
    Kernel(BF16, 128, two_pass=True, dynamic=True, traits="causal+ragged"),
    Kernel(FP16, 64, two_pass=True, dq_keys=112, turns=False, traits="window+ragged"),
    Kernel(BF16, 128, q_stages=3, traits="causal+ragged+packed"),
    Kernel(FP16, 64, dynamic=True, turns=False, traits="causal+window+ragged+packed"),
    Kernel(FP16, 128, two_pass=True, dynamic=True, traits="ragged+packed"),
)
ONE, TWO = KERNELS[0], KERNELS[2]


def _drawn(kernel: Kernel, number: int) -> BackwardProblem:
    return draw_problem(kernel, f"{number}")


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
def test_no_schedule_makes_a_gradient_wrong(kernel: Kernel, libraries: Path) -> None:
    said = judge(kernel, kernel.library(libraries), partial(_drawn, kernel), count=5, repeats=1)
    assert not said.findings
    assert said.launches == 10


@pytest.mark.parametrize("kernel", [ONE, TWO], ids=str)
@pytest.mark.parametrize("spoilt", ["d_o", "v"])
def test_nan_of_a_row_reaches_what_depends_on_it_alone(
    kernel: Kernel, spoilt: str, libraries: Path
) -> None:
    """But for products with its tile: P of 0 times NaN of dO is in dV."""
    w = Workload(1, 2, 1, 150, 200, kernel.d_head, kernel.dtype, causal=True)
    problem = make_problem(w, random.Random(5), ["strided"])
    row = 70
    tensor = problem.d_o if spoilt == "d_o" else problem.forward.v
    tensor[0, row] = 0  # what does not depend on it is as with any number
    exact, _, lse = attention(problem.forward)
    clean, right = launch(kernel, kernel.library(libraries), problem, Schedule(1, 1, 0.0, 1.0))
    assert not faults(problem, clean, right)
    tensor[0, row] = NAN
    spoilt_o = exact.copy()
    if spoilt == "v":
        spoilt_o[:, problem.seen()[:, row]] = np.nan
    said, _ = launch(
        *(kernel, kernel.library(libraries), problem, Schedule(2, 1, 0.0, 0.5)),
        results=(spoilt_o, lse),
    )
    queries = problem.seen()[:, row] if spoilt == "v" else np.arange(w.seq_len_q) == row
    keys = problem.seen()[queries].any(0)
    for name, spoilt_rows in (("dq", queries), ("dk", keys)):
        found = to_float(said.rooms[name].inside, w.dtype)
        assert np.isnan(found[:, spoilt_rows]).all(), name
        others = to_float(clean.rooms[name].inside, w.dtype)[:, ~spoilt_rows]
        assert share(found[:, ~spoilt_rows] - others, others) < 1e-3, name
    if spoilt == "v":
        assert said.bits("dv") == clean.bits("dv")
