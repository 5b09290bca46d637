"""The backward kernels on the host: right whatever the schedule.

Some kernels; `python -m tests.kernels.emulated.backward_campaign` draws any number of them.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm80_bwd.config import Sm80BackwardConfig
from tests.kernels.emulated.backward import faults, judge, launch, share
from tests.kernels.emulated.backward_kernels import Kernel
from tests.kernels.emulated.backward_problems import BackwardProblem, draw_problem, make_problem
from tests.kernels.emulated.backward_sm80 import Sm80Kernel
from tests.kernels.emulated.emulation import Schedule
from tests.kernels.emulated.problems import NAN, attention, to_float

FP16, BF16 = DType.FP16, DType.BF16


def _meeting(
    dtype: DType,
    d_head: int,
    q_stages: int = 2,
    *,
    dynamic: bool = True,
    cluster: int = 1,
    traits: str,
) -> Kernel:
    """Warpgroups that meet in each step."""
    return Kernel(
        *(dtype, d_head, q_stages),
        turns=False,
        dynamic=dynamic,
        same_step=True,
        cluster=cluster,
        traits=traits,
    )


def _wide(
    dtype: DType,
    d_head: int,
    dq_keys: int,
    cluster: int,
    dq_cluster: int,
    *,
    d_head_v: int = 0,
    traits: str,
) -> Kernel:
    """Of tiles of 64 keys."""
    return Kernel(
        *(dtype, d_head, 3),
        two_pass=True,
        dq_keys=dq_keys,
        d_head_v=d_head_v,
        cluster=cluster,
        dq_cluster=dq_cluster,
        B_c=64,
        traits=traits,
    )


# Together: one pass and two, each of all head dimensions, one tile and several a CTA, rings of two
# and three, turns and not, all masks, all that changes scores.
KERNELS = (
    Kernel(FP16, 128, q_stages=3, traits="causal+ragged"),
    Kernel(BF16, 64, dynamic=True, traits="causal+window+ragged"),
    Kernel(BF16, 128, two_pass=True, dynamic=True, traits="causal+ragged"),
    Kernel(FP16, 64, two_pass=True, dq_keys=112, turns=False, traits="window+ragged"),
    Kernel(BF16, 128, q_stages=3, traits="causal+ragged+packed"),
    Kernel(FP16, 64, dynamic=True, turns=False, traits="causal+window+ragged+packed"),
    Kernel(FP16, 128, two_pass=True, dynamic=True, traits="ragged+packed"),
    Kernel(FP16, 128, q_stages=3, traits="causal+ragged+lse+softcap"),
    Kernel(BF16, 64, dynamic=True, traits="causal+ragged+window+alibi+packed"),
    Kernel(FP16, 64, two_pass=True, traits="ragged+lse+softcap+alibi"),
    Kernel(BF16, 128, q_stages=3, traits="causal+ragged+lse+hook"),
    Kernel(FP16, 64, two_pass=True, dynamic=True, traits="window+ragged+hook"),
    Kernel(BF16, 96, q_stages=3, traits="causal+ragged+packed"),
    Kernel(FP16, 96, two_pass=True, dynamic=True, traits="causal+window+ragged+softcap"),
    Kernel(FP16, 256, 3, two_pass=True, dq_keys=48, traits="causal+ragged"),
    Kernel(BF16, 256, turns=False, two_pass=True, dq_keys=48, traits="causal+window+ragged+packed"),
    Kernel(BF16, 192, 3, two_pass=True, dq_keys=80, traits="causal+ragged+lse+softcap+alibi"),
    Kernel(FP16, 256, 3, two_pass=True, dq_keys=48, traits="causal+ragged+hook"),
    Kernel(FP16, 192, 3, False, True, dq_keys=64, d_head_v=128, traits="window+ragged+packed"),
    _meeting(FP16, 128, traits="causal+window+ragged"),
    _meeting(BF16, 64, 3, traits="causal+ragged+packed"),
    _meeting(BF16, 128, 3, dynamic=False, traits="causal+ragged+lse+alibi"),
    Kernel(FP16, 128, q_stages=3, dynamic=True, turns=False, traits="causal+window+ragged"),
    _meeting(FP16, 96, traits="causal+ragged+lse+softcap"),
    Kernel(BF16, 128, 3, cluster=2, traits="causal+ragged"),
    _meeting(FP16, 64, 3, dynamic=False, cluster=4, traits="causal+window+ragged+packed"),
    _meeting(BF16, 128, dynamic=False, cluster=4, traits="causal+ragged+hook"),
    Kernel(FP16, 96, 3, turns=False, cluster=8, traits="causal+ragged+lse+alibi"),
    Kernel(FP16, 128, two_pass=True, cluster=2, traits="window+ragged+packed"),
    _meeting(FP16, 72, traits="causal+ragged+packed"),
    Kernel(BF16, 80, 3, dynamic=True, turns=False, traits="window+ragged+lse"),
    Kernel(FP16, 88, two_pass=True, traits="causal+ragged"),
    _meeting(BF16, 104, 3, dynamic=False, cluster=2, traits="causal+ragged"),
    Kernel(BF16, 160, 3, two_pass=True, dq_keys=80, traits="ragged+packed"),
    Kernel(FP16, 248, 3, two_pass=True, dq_keys=48, traits="causal+window+ragged"),
    _wide(FP16, 192, 80, 3, 2, traits="causal+ragged+packed"),
    _wide(BF16, 256, 48, 4, 8, traits="window+ragged"),
    _wide(FP16, 192, 64, 8, 4, d_head_v=128, traits="causal+ragged+lse"),
    _wide(BF16, 200, 48, 1, 3, traits="ragged+packed"),
    Kernel(FP16, 96, two_pass=True, dq_keys=64, dq_cluster=3, traits="causal+ragged+packed"),
    Kernel(BF16, 64, two_pass=True, cluster=2, dq_cluster=8, traits="window+ragged"),
    _meeting(FP16, 32, 3, traits="causal+ragged+packed"),
    Kernel(BF16, 40, 3, dynamic=True, turns=False, traits="window+ragged+lse"),
    Kernel(FP16, 48, 3, cluster=2, traits="ragged"),
    Kernel(BF16, 32, two_pass=True, dynamic=True, dq_keys=64, traits="causal+ragged"),
    Kernel(FP16, 48, two_pass=True, traits="window+ragged+lse"),
    _meeting(BF16, 56, 3, traits="causal+ragged"),
)
ONE, TWO, WIDE = KERNELS[0], KERNELS[2], next(k for k in KERNELS if k.d_head == 256)


def _sm80(*numbers: int, traits: str, scalar_adds: bool = False, **more: int) -> Sm80Kernel:
    return Sm80Kernel(Sm80BackwardConfig(*numbers, **more), traits, scalar_adds)


# Together: one pass and two, P and dS in registers and shared, one stage and two, both ways to add,
# rows of 32 to 256 columns and of other ones in V.
SM80_KERNELS = (
    _sm80(FP16, 128, 64, 64, 4, 2, 2, traits="causal+ragged"),
    _sm80(BF16, 96, 32, 32, 2, traits="window+ragged", scalar_adds=True),
    _sm80(BF16, 64, 64, 64, 4, 1, 2, two_pass=True, traits="causal+window+ragged"),
    _sm80(FP16, 192, 32, 64, 4, 2, two_pass=True, d_head_v=128, traits="causal"),
    _sm80(FP16, 256, 64, 32, 8, 4, traits="ragged", scalar_adds=True),
)
ALL_KERNELS = (*KERNELS, *SM80_KERNELS)


def _drawn(kernel: Kernel, number: int) -> BackwardProblem:
    return draw_problem(kernel, f"{number}")


@pytest.mark.parametrize("kernel", ALL_KERNELS, ids=str)
def test_no_schedule_makes_a_gradient_wrong(kernel: Kernel, libraries: Path) -> None:
    said = judge(kernel, kernel.library(libraries), partial(_drawn, kernel), count=5, repeats=1)
    assert not said.findings
    assert said.launches == 10


def test_keys_that_there_are_not_have_no_weight(libraries: Path) -> None:
    """Of a last block of dq_keys: queries far from all keys would weigh them beyond fp16."""
    kernel = Kernel(FP16, 64, two_pass=True, traits="alibi")
    problem = make_problem(
        Workload(1, 1, 1, 400, 128, 64, FP16, alibi=True), random.Random(5), ["plain"]
    )
    problem.forward.slopes[...] = 1.0
    result, right = launch(kernel, kernel.library(libraries), problem, Schedule(1, 1, 0.0, 1.0))
    assert not faults(problem, result, right)


@pytest.mark.parametrize("kernel", [ONE, TWO, WIDE, SM80_KERNELS[0], SM80_KERNELS[2]], ids=str)
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
