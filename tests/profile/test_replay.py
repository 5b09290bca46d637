"""Recorded attempts through the ordinary interface."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from fa_tune.core.model import Artifact, Attempt, Measurement, Outcome, Quantity, Resources, Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.replay import ReplayProfiler

WORKLOAD = Workload(16, 16, 16, 1024, 1024, 128, DType.FP16)
ELSEWHERE = dataclasses.replace(WORKLOAD, seq_len_q=2048, seq_len_kv=2048)
RESOURCES = Resources(168, 0, 0, 0, 0, 49152, 128, 2)


def attempt(subject: str, workload: Workload = WORKLOAD) -> Attempt:
    measurement = Measurement(
        subject, workload.key, "ncu", (1e-3, 2e-3), {"c": Quantity(5.0, "cycle")}, {"clocks": "x"}
    )
    return Attempt(subject, workload.key, Outcome.OK, "", measurement)


CRASHED = Attempt("sm80:c", WORKLOAD.key, Outcome.CRASHED, "an illegal address")
RECORDED = [attempt("ref:fa2"), attempt("sm80:a"), attempt("sm80:b", ELSEWHERE), CRASHED]


TUNE = "nvidia_h200/tune_ncu.csv"


def profiler(**recordings: list[Attempt]) -> ReplayProfiler:
    """Replays RECORDED, or these recordings, newest first."""
    held = recordings or {TUNE: RECORDED}
    return ReplayProfiler(
        {label: {(a.workload, a.subject): a for a in some} for label, some in held.items()},
        method="ncu",
        version="2025.3.1",
        arguments=("--page", "raw"),
        clock_policy="none",
        cache_policy="flush all",
    )


def replayed(
    *names: str, references: tuple[str, ...] = (), **recordings: list[Attempt]
) -> list[Attempt]:
    variants = [Variant("sm80", name) for name in names]
    artifacts = {v.key: Artifact(v, "plain", "sm_90", "", "", RESOURCES) for v in variants}
    plan = MeasurePlan(WORKLOAD, artifacts, references, runs=9)
    steps: list[str] = []
    found = list(profiler(**recordings).measure(plan, steps.append))
    assert [a.subject for a in found] == list(plan.subjects) == steps
    return found


def test_a_recorded_attempt_comes_out_as_it_was_and_says_whence() -> None:
    (found,) = replayed("a")
    assert found.measurement is not None
    original = attempt("sm80:a").measurement
    assert original is not None
    assert found.measurement == dataclasses.replace(original, replayed_from=TUNE)


def test_what_was_never_measured_is_not_recorded_and_a_failure_stays_one() -> None:
    (found,) = replayed("z")
    assert found.outcome is Outcome.NOT_RECORDED
    assert found.measurement is None
    # And what there is instead: ELSEWHERE's length belongs to the same dtype and d_head.
    recorded = "recorded lengths for d_head 128 FP16: 1024, 2048"
    assert found.reason == f"no ncu measurement of it in {TUNE}; {recorded}"
    (found,) = replayed("b")
    assert found.outcome is Outcome.NOT_RECORDED
    assert replayed("c") == [CRASHED]
    found = replayed("a", references=("fa2", "cudnn"))
    assert [a.outcome for a in found] == [Outcome.OK, Outcome.NOT_RECORDED, Outcome.OK]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"softmax_scale": 0.3}, "d_head 128 FP16, scale 0.3: none"),
        ({"lse": True, "causal": True}, "d_head 128 FP16 causal, with log-sum-exp: none"),
    ],
)
def test_what_is_another_problem_is_told_apart(changes: dict[str, Any], text: str) -> None:
    asked = dataclasses.replace(WORKLOAD, **changes)
    artifact = Artifact(Variant("sm80", "a"), "plain", "sm_90", "", "", RESOURCES)
    plan = MeasurePlan(asked, {artifact.variant.key: artifact}, (), runs=9)
    (found,) = profiler().measure(plan, lambda _: None)
    assert found.outcome is Outcome.NOT_RECORDED
    assert found.reason.endswith(f"recorded lengths for {text}")


def sources(found: list[Attempt]) -> list[str]:
    return [a.measurement.replayed_from for a in found if a.measurement]


def test_one_run_answers_where_it_can_the_newest_of_equals_and_others_fill_the_gaps() -> None:
    newest, older = [attempt("sm80:a")], [attempt("sm80:a"), attempt("sm80:b")]
    assert sources(replayed("a", "b", newest=newest, older=older)) == ["older", "older"]
    both = [attempt("sm80:a"), attempt("sm80:b")]
    assert sources(replayed("a", "b", newest=both, older=both)) == ["newest", "newest"]
    newest, older = [attempt("sm80:a"), attempt("sm80:b")], [attempt("sm80:a"), attempt("sm80:d")]
    found = replayed("a", "b", "d", newest=newest, older=older)
    assert sources(found) == ["newest", "newest", "older"]
