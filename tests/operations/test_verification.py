"""What kernels are checked on, and when they pass."""

import dataclasses
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core import codec
from fa_tune.core.model import CaseError, Verdict
from fa_tune.core.workload import DType, Workload
from fa_tune.core.workload import benchmark_workload as benchmark
from fa_tune.operations.base import SINK_FIRST, SINK_LAST, CheckCase, Figures, reference_limits
from fa_tune.operations.forward.spec import Forward
from fa_tune.operations.traits import Traits
from fa_tune.operations.verification import case_error, fault, verdict

W = benchmark(1024, 128, DType.FP16)
BF16 = benchmark(1024, 128, DType.BF16)
BLOCKS = [(64, 64), (128, 32), (64, 128), (128, 96)]


def verification_cases(
    blocks: tuple[int, int], d_head: int, dtype: DType, traits: str
) -> tuple[CheckCase, ...]:
    return Forward().verification_cases(blocks, d_head, dtype, Traits.parse(traits))


def verification_workloads(
    blocks: tuple[int, int], d_head: int, dtype: DType, traits: str
) -> tuple[Workload, ...]:
    return tuple(case.workload for case in verification_cases(blocks, d_head, dtype, traits))


ALL_TRAITS = ["plain", "ragged", "causal", "lse", "causal+ragged", "causal+ragged+lse"]


ONES = Figures(1.0, 1.0)
THEIRS = Figures(1e-3, 1e-4)


def judged(
    largest: float, rms: float = 0.0, theirs: Figures = THEIRS, workload: Workload = W
) -> CaseError:
    return case_error(CheckCase(workload), Figures(largest, rms), theirs, ONES)


@pytest.mark.parametrize("dtype", list(DType))
def test_twice_the_references_error_and_a_unit_in_the_last_place(dtype: DType) -> None:
    unit, theirs, exact = dtype.element.epsilon, Figures(0.01, 0.01), Figures(0.0, 0.0)
    assert reference_limits(theirs, ONES, dtype) == Figures(0.02 + unit, 1.2 * 0.01)
    assert reference_limits(theirs, Figures(5.0, 1.0), dtype).largest == 0.02 + 4 * unit
    assert reference_limits(theirs, Figures(0.3, 0.3), dtype).largest == 0.02 + unit / 4
    # A reference that happens to be exact leaves room for a rounding.
    assert reference_limits(exact, Figures(4.0, 1.0), dtype) == Figures(4 * unit, unit / 8)


def test_a_root_mean_square_of_few_rows_may_be_off_by_chance() -> None:
    def allowed(rows: float) -> float:
        return reference_limits(Figures(1.0, 1.0, rows), ONES, DType.FP16).rms

    assert allowed(math.inf) == 1.2
    assert 1.2 < allowed(1e6) < 1.21
    assert 1.29 < allowed(1000) < 1.31


@pytest.mark.parametrize("dtype", list(DType))
def test_a_unit_in_the_last_place_is_the_distance_to_the_next_number(dtype: DType) -> None:
    assert dtype.element.unit_in_the_last_place(1.0) == dtype.element.unit_in_the_last_place(-1.999)
    assert dtype.element.unit_in_the_last_place(2.0) == 2 * dtype.element.epsilon
    smallest = 2.0**-14 if dtype is DType.FP16 else 2.0**-126
    for value in (0.0, smallest / 8, smallest):
        assert dtype.element.unit_in_the_last_place(value) == dtype.element.epsilon * smallest
    assert math.isnan(dtype.element.unit_in_the_last_place(math.nan))


@pytest.mark.parametrize("workload", [W, BF16])
def test_the_limits_themselves_pass_and_nothing_above_them(workload: Workload) -> None:
    theirs = Figures(1e-2, 1e-2)
    limits = reference_limits(theirs, ONES, workload.dtype)
    assert judged(limits.largest, limits.rms, theirs, workload).ok
    above = math.nextafter(limits.largest, 1)
    assert not judged(above, limits.rms, theirs, workload).ok
    assert not judged(limits.largest, math.nextafter(limits.rms, 1), theirs, workload).ok


@pytest.mark.parametrize("error", [math.nan, math.inf])
def test_what_is_no_number_never_passes(error: float) -> None:
    assert not judged(error).ok
    assert not judged(1e-4, error).ok
    assert not judged(error, error, Figures(math.nan, math.nan)).ok
    assert not judged(1e-4, 1e-5, Figures(math.nan, math.nan)).ok
    assert judged(error).share == math.inf


def test_a_case_keeps_its_figures() -> None:
    case = judged(1e-3, 1e-4, Figures(2e-3, 4e-4))
    limits = (2e-3, 4e-3 + 2**-10, True, 1e-4, 4e-4, 1.2 * 4e-4)
    assert case == CaseError(W.key, 1e-3, *limits)
    assert case.share == 1e-4 / (1.2 * 4e-4), "of the figure that is nearer its limit"
    assert CaseError(W.key, 1e-3, 1e-3, 4e-3, True).share == 1 / 4, "of an earlier version"


def test_correct_means_every_case() -> None:
    good, bad, worse = (judged(e, theirs=Figures(0.0, 0.0)) for e in (0.0, 0.5, math.nan))
    assert verdict([good, good]) == Verdict(True, (good, good))
    found = verdict([good, bad, worse])
    assert found.correct is False
    assert found.cases == (good, bad, worse)
    assert found.reason == f"{W.key}: error 0.5 exceeds 0.000977", "the first that is wrong"
    assert "not written or are NaN" in verdict([worse]).reason


def test_the_reason_names_inputs_and_the_figure() -> None:
    small = Figures(0.0, 2e-4)
    case = case_error(CheckCase(W, SINK_LAST), Figures(1e-4, 2e-3), small, ONES)
    why = "root mean square error 0.002 exceeds 0.00024"
    assert verdict([case]).reason == f"{W.key} (sink_last): {why}"
    assert fault(case) == why
    assert fault(judged(0.0)) == ""


def test_the_largest_error_at_its_limit_is_not_what_is_wrong() -> None:
    """And where the root mean square is unknown, it is."""
    case = judged(0.0)
    of_rms = dataclasses.replace(case, max_abs_error=case.limit, rms_error=1.0, ok=False)
    assert "root mean square" in fault(of_rms)
    for missing in ("rms_error", "rms_limit"):
        wrong = dataclasses.replace(of_rms, **{missing: None})
        assert fault(wrong) == f"error {case.limit:.3g} exceeds {case.limit:.3g}"


def test_nothing_tried_is_not_correct() -> None:
    assert verdict([]) == Verdict(False, (), "no case was run")


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
    assert {(w.d_head, w.d_v) for w in cases} == {(64, 64)}
    assert any(w.heads & (w.heads - 1) for w in cases), "a head count that is no power of two"
    assert any(1 < w.kv_heads < w.heads for w in cases), "grouped heads"
    assert any(w.kv_heads == 1 < w.heads for w in cases), "one key head for all"
    assert any(w.batch > 1 for w in cases)
    assert any(w.seq_len_q != w.seq_len_kv for w in cases)
    whole = verification_cases((64, 64), 64, dtype, traits)
    assert len(set(whole)) == len(whole)


@pytest.mark.parametrize("traits", ["causal", "causal+ragged", "causal+ragged+lse"])
def test_masks_come_in_both_alignments_on_either_side_of_the_square(traits: str) -> None:
    cases = verification_workloads((64, 64), 128, DType.FP16, traits)
    shapes = {(w.bottom_right, w.seq_len_q > w.seq_len_kv) for w in cases}
    assert shapes == {(br, longer) for br in (False, True) for longer in (False, True)}
    assert all(w.causal for w in cases)
    assert {w.lse for w in cases} == {"lse" in traits}
    # Aligned bottom-right, the first of more queries than keys see nothing.
    assert any(w.diagonal < 0 for w in cases)


@pytest.mark.parametrize("d_head", [32, 128, 256])
@pytest.mark.parametrize("traits", ALL_TRAITS)
def test_scales_are_usual_unusual_far_off_and_make_scores_of_1e5(traits: str, d_head: int) -> None:
    found = {w.softmax_scale for w in verification_workloads((64, 64), d_head, DType.FP16, traits)}
    usual, tiny, near, large = sorted(found, key=lambda scale: scale or 0)
    assert usual is None
    assert tiny == 1e-4
    assert near == 1.5 / math.sqrt(d_head)
    # The largest of some hundred normal numbers is 3.5.
    assert large * math.sqrt(d_head) * 3.5 == pytest.approx(1e5, rel=0.01)


@pytest.mark.parametrize("traits", ALL_TRAITS)
def test_a_sink_is_at_either_end(traits: str) -> None:
    cases = verification_cases((64, 64), 128, DType.FP16, traits)
    words = [case.inputs for case in cases if case.inputs != "normal"]
    assert words == [SINK_FIRST, SINK_LAST]
    assert len(cases) <= 12, "a search does this for every kernel"


@pytest.mark.parametrize("traits", ALL_TRAITS)
@pytest.mark.parametrize("blocks", BLOCKS)
def test_thorough_is_more_of_the_same_traits(blocks: tuple[int, int], traits: str) -> None:
    facts = Traits.parse(traits)
    quick = Forward().verification_cases(blocks, 128, DType.FP16, facts)
    cases = Forward().verification_cases(blocks, 128, DType.FP16, facts, thorough=True)
    assert cases[: len(quick)] == quick
    more = [case.workload for case in cases[len(quick) :]]
    assert {Forward().traits(w, blocks) for w in more} == {facts}
    assert 130_000 < max(w.seq_len_kv for w in more) <= 131072
    scales = {w.softmax_scale for w in more if w.softmax_scale}
    assert min(scales) == 1e-6
    assert max(scales) == 1e6


figures = st.floats(allow_nan=True, allow_infinity=True)
maybe = st.none() | figures
cases = st.builds(
    CaseError,
    *(st.text(max_size=20), figures, figures, figures, st.booleans()),
    *(maybe, maybe, maybe, st.text(max_size=20)),
)
verdicts = st.builds(
    Verdict, st.booleans(), st.lists(cases, max_size=4).map(tuple), st.text(max_size=20)
)


@given(verdicts)
def test_a_verdict_crosses_the_border_to_the_worker(saved: Verdict) -> None:
    loaded = codec.load(Verdict, json.loads(json.dumps(codec.dump(saved), allow_nan=False)))
    assert repr(loaded) == repr(saved), "by repr, since NaN is unequal to itself"


def test_a_case_of_an_earlier_version_is_read() -> None:
    old = {"workload": "w", "max_abs_error": 1.0, "reference_max_abs_error": 1.0}
    raw = {"correct": True, "cases": [{**old, "limit": 2.0, "ok": True}], "reason": ""}
    assert codec.load(Verdict, raw).cases == (CaseError("w", 1.0, 1.0, 2.0, True),)
