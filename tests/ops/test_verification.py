"""What kernels are checked on, and when they pass."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.model import CaseError, Verdict
from fa_tune.core.workload import DType, Workload
from fa_tune.core.workload import benchmark_workload as benchmark
from fa_tune.ops.base import FLOOR, twice_and_floor
from fa_tune.ops.forward import Forward
from fa_tune.ops.traits import Traits
from fa_tune.ops.verification import (
    case_error,
    verdict,
    verdict_from_json,
    verdict_to_json,
)

W = benchmark(1024, 128, DType.FP16)
BF16 = benchmark(1024, 128, DType.BF16)
BLOCKS = [(64, 64), (128, 32), (64, 128), (128, 96)]


def verification_workloads(
    blocks: tuple[int, int], d_head: int, dtype: DType, traits: str
) -> tuple[Workload, ...]:
    return Forward().verification_workloads(blocks, d_head, dtype, Traits.parse(traits))


ALL_TRAITS = ["plain", "ragged", "causal", "lse", "causal+ragged", "causal+ragged+lse"]


# The criterion ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("workload", "floor"), [(W, 2**-10), (BF16, 2**-7)])
def test_twice_the_references_error_and_one_rounding(workload: Workload, floor: float) -> None:
    assert twice_and_floor(0.01, workload.dtype) == 0.02 + floor


@pytest.mark.parametrize("workload", [W, BF16])
def test_the_limit_itself_passes_and_nothing_above_it(workload: Workload) -> None:
    limit = twice_and_floor(1e-3, workload.dtype)
    assert case_error(workload, limit, 1e-3).ok
    assert not case_error(workload, math.nextafter(limit, 1), 1e-3).ok


def test_a_reference_that_happens_to_be_exact_leaves_room_for_a_rounding() -> None:
    assert case_error(W, FLOOR[DType.FP16], 0.0).ok
    assert not case_error(W, 2 * FLOOR[DType.FP16], 0.0).ok


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_what_is_no_number_never_passes(error: float) -> None:
    assert not case_error(W, error, 1e-3).ok
    assert not case_error(W, error, math.nan).ok
    assert not case_error(W, 1e-4, math.nan).ok


def test_a_case_keeps_its_figures() -> None:
    case = case_error(W, 1e-3, 2e-3)
    assert case == CaseError(W.key, 1e-3, 2e-3, 4e-3 + 2**-10, True)


def test_correct_means_every_case() -> None:
    good, bad, worse = (case_error(W, e, 0.0) for e in (0.0, 0.5, math.nan))
    assert verdict([good, good]) == Verdict(True, (good, good))
    found = verdict([good, bad, worse])
    assert not found.correct
    assert found.cases == (good, bad, worse)
    assert found.reason == f"{W.key}: error 0.5 exceeds 0.000977", "the first that is wrong"
    assert "not written or are NaN" in verdict([worse]).reason


def test_nothing_tried_is_not_correct() -> None:
    assert verdict([]) == Verdict(False, (), "no case was run")


# The cases --------------------------------------------------------------------------------------


@pytest.mark.parametrize("traits", ALL_TRAITS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_lengths_are_those_the_kernel_was_compiled_for(
    blocks: tuple[int, int], traits: str
) -> None:
    facts = Traits.parse(traits)
    for w in verification_workloads(blocks, 128, DType.FP16, traits):
        assert w.causal == facts.causal
        if not facts.ragged:
            assert w.seq_len_q % blocks[0] == 0
            assert w.seq_len_kv % blocks[1] == 0


@pytest.mark.parametrize("blocks", BLOCKS)
def test_ragged_lengths_are_ragged_on_both_sides(blocks: tuple[int, int]) -> None:
    cases = verification_workloads(blocks, 128, DType.FP16, "ragged")
    assert any(w.seq_len_q % blocks[0] and w.seq_len_kv % blocks[1] for w in cases)
    assert any(w.seq_len_q == w.seq_len_kv == 1 for w in cases), "the smallest there is"
    assert any(w.seq_len_kv > blocks[1] for w in cases), "a whole block and a part"


@pytest.mark.parametrize("traits", ["plain", "ragged"])
@pytest.mark.parametrize("dtype", list(DType))
def test_shapes_are_awkward(traits: str, dtype: DType) -> None:
    cases = verification_workloads((64, 64), 64, dtype, traits)
    assert len(cases) >= 3
    assert {w.dtype for w in cases} == {dtype}
    assert {w.d_head for w in cases} == {64}
    assert any(w.heads & (w.heads - 1) for w in cases), "a head count that is no power of two"
    assert any(1 < w.kv_heads < w.heads for w in cases), "grouped heads"
    assert any(w.kv_heads == 1 < w.heads for w in cases), "one key head for all"
    assert any(w.batch > 1 for w in cases)
    assert any(w.seq_len_q != w.seq_len_kv for w in cases)
    assert len({w.key for w in cases}) == len(cases)


@pytest.mark.parametrize("traits", ["causal", "causal+ragged", "causal+ragged+lse"])
def test_masks_come_in_both_alignments_on_either_side_of_the_square(traits: str) -> None:
    cases = verification_workloads((64, 64), 128, DType.FP16, traits)
    shapes = {(w.bottom_right, w.seq_len_q > w.seq_len_kv) for w in cases}
    assert shapes == {(br, longer) for br in (False, True) for longer in (False, True)}
    assert all(w.causal for w in cases)
    assert {w.lse for w in cases} == {"lse" in traits}
    assert len(set(cases)) == len(cases)


@pytest.mark.parametrize("traits", ALL_TRAITS)
def test_one_scale_is_not_the_usual_one(traits: str) -> None:
    cases = verification_workloads((64, 64), 128, DType.FP16, traits)
    assert {w.softmax_scale is None for w in cases} == {True, False}


# As plain data ----------------------------------------------------------------------------------

figures = st.floats(allow_nan=True, allow_infinity=True)
cases = st.builds(CaseError, st.text(max_size=20), figures, figures, figures, st.booleans())
verdicts = st.builds(
    Verdict, st.booleans(), st.lists(cases, max_size=4).map(tuple), st.text(max_size=20)
)


@given(verdicts)
def test_a_verdict_crosses_the_border_to_the_worker(saved: Verdict) -> None:
    loaded = verdict_from_json(json.loads(json.dumps(verdict_to_json(saved))))
    assert repr(loaded) == repr(saved), "by repr, since NaN is unequal to itself"
