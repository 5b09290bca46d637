"""The decode family's kernels on the host: with lengths and pages that are known on the device
alone, with parts that a kernel of their own combines, and whatever the schedule."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import CacheArgs
from tests.kernels.emulated.emulation import Emulated, build, schedules
from tests.kernels.emulated.judging import judge
from tests.kernels.emulated.problems import NAN, Bits, Problem, faults

FAMILY = families.get("decode")
# Together: one warp for all rows and several, groups with a slice each and one group, a second
# k-step, both ways to combine, both types.
KERNELS = (
    ("decode(BF16, 64, 16, 64, 2): stages_2+ctas_2", "causal+ragged+lse"),
    ("decode(FP16, 96, 32, 32, 4): row_warps_2+aligned+combine_kernel", "ragged+lse"),
    ("decode(BF16, 128, 64, 16, 4): row_warps_4+stages_4+ctas_3+min_blocks_2", "causal+ragged"),
)
LENGTHS = (0, 1, 37, 150, 64)
QUERIES, GROUP, KV_HEADS, CAPACITY, PAGE = 3, 4, 2, 160, 32


def _kernel(short_form: str, traits: str, folder: Path) -> Emulated:
    variant = families.variant(FAMILY.parse(short_form))
    return build(BuildRequest(variant, traits, "sm_90"), folder)


@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_no_schedule_changes_a_result(short_form: str, traits: str, tmp_path: Path) -> None:
    verdict = judge(_kernel(short_form, traits, tmp_path), repeats=2)
    assert not verdict.findings
    assert verdict.launches >= 9


def _problem(config_d_head: int, dtype: DType, traits: str) -> Problem:
    """All keys of the cache; those beyond a sequence's length are NaN."""
    causal = "causal" in traits
    workload = Workload(
        *(len(LENGTHS), GROUP * KV_HEADS, KV_HEADS, QUERIES, CAPACITY, config_d_head, dtype),
        causal=causal,
        bottom_right=causal,
        lse="lse" in traits,
    )
    problem = Problem.draw(workload, "plain", 3)
    for batch, length in enumerate(LENGTHS):
        problem.k[batch, length:] = NAN
        problem.v[batch, length:] = NAN
    return problem


def _judged(problem: Problem, out: np.ndarray, lse: np.ndarray) -> list[str]:
    """What is wrong, sequence by sequence."""
    w, found = problem.workload, []
    rows = w.heads * w.seq_len_q
    for batch, length in enumerate(LENGTHS):
        one = slice(batch, batch + 1)
        if length == 0:
            found += ["not 0"] if out[one].any() else []
            continue
        alone = dataclasses.replace(
            problem,
            workload=dataclasses.replace(w, batch=1, seq_len_kv=length),
            q=problem.q[one],
            k=problem.k[one, :length],
            v=problem.v[one, :length],
        )
        room, own_lse = alone.out(), alone.lse()
        room.inside[...] = out[one]
        own_lse[64:-64] = lse[64:-64][batch * rows : (batch + 1) * rows]
        found += [f"sequence {batch}: {fault}" for fault in faults(alone, room, own_lse)]
    return found


def _paged(tensor: Bits) -> tuple[Bits, np.ndarray]:
    """The cache in pages of a pool, in no order, and the table of them; pages that no sequence
    owns are NaN, and the table has nonsense where a sequence has ended."""
    batch, _, heads, d_head = tensor.shape
    each = CAPACITY // PAGE
    order = np.random.default_rng(7).permutation(batch * each + 4)[: batch * each]
    pool = np.full((batch * each + 4, PAGE, heads, d_head), NAN, np.uint16)
    pool[order] = tensor.reshape(batch * each, PAGE, heads, d_head)
    table = order.reshape(batch, each).astype(np.int32)
    for row, length in zip(table, LENGTHS, strict=True):
        row[-(-length // PAGE) :] = 1 << 30
    return pool, table


@pytest.mark.parametrize("paged", [False, True], ids=["in one piece", "in pages"])
@pytest.mark.parametrize(("short_form", "traits"), KERNELS)
def test_lengths_are_those_of_the_device(
    short_form: str, traits: str, paged: bool, tmp_path: Path
) -> None:
    kernel = _kernel(short_form, traits, tmp_path)
    problem = _problem(kernel.config.d_head, kernel.config.dtype, traits)
    lengths = np.array(LENGTHS, np.int32) - 2
    cache = CacheArgs(lengths=lengths.ctypes.data, added=2)
    lengths[0] = -2
    given = problem
    if paged:
        (k, table), (v, _) = _paged(problem.k), _paged(problem.v)
        given = dataclasses.replace(problem, k=k, v=v)
        cache = dataclasses.replace(
            cache, pages=table.ctypes.data, page_size=PAGE, page_stride=table.shape[1]
        )
    first = None
    for schedule in itertools.islice(schedules(5), 4):
        out, lse = kernel.launch(given, schedule, cache)
        assert not _judged(problem, out.inside, lse)
        assert out.is_clean_outside()
        found = out.whole.tobytes() + lse.tobytes()
        assert first in (None, found), "other bits than the first time"
        first = found
