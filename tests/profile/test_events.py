"""The events profiler's side of the border; the worker's is in tests/gpu_jobs and tests/gpu."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fa_tune.core.inputs import InputSpec
from fa_tune.core.jobs import TimeJob
from fa_tune.core.model import Artifact, Attempt, Outcome, Quantity, Resources, Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.profile import events
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.metrics import SM_CLOCK
from fa_tune.workers.supervisor import ItemResult
from tests.profile import events_child

WORKLOAD = Workload(1, 2, 2, 128, 128, 64, DType.FP16)
RESOURCES = Resources(168, 0, 0, 0, 0, 49152, 128, 2)


@pytest.fixture(autouse=True)
def _without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimeJob, "handler", "tests.profile.events_child:handle")


def plan(references: tuple[str, ...] = (), **behaviours: dict[str, Any]) -> MeasurePlan:
    artifacts = {}
    for name, behaviour in behaviours.items():
        variant = Variant("sm80", name)
        cubin = json.dumps({"samples_s": [1e-3, 2e-3], **behaviour})
        artifacts[variant.key] = Artifact(variant, "plain", "sm_90", cubin, name, RESOURCES)
    return MeasurePlan(WORKLOAD, artifacts, references, runs=2, item_timeout_s=0.8)


def measure(wanted: MeasurePlan) -> dict[str, Attempt]:
    attempts = list(EventsProfiler().measure(wanted, lambda _: None))
    assert sorted(a.subject for a in attempts) == sorted(wanted.subjects)
    return {a.subject: a for a in attempts}


def test_samples_clock_and_conditions() -> None:
    attempts = measure(plan(("fa2",), a={"clock_hz": 1.98e9}, b={"samples_s": [3e-3, 4e-3]}))
    first = attempts["sm80:a"].measurement
    assert first is not None
    assert first.samples_s == (1e-3, 2e-3)
    assert first.method == "events"
    assert first.counters == {SM_CLOCK: Quantity(1.98e9, "hz")}
    assert first.conditions == {
        "l2": "cold-rotate",
        "clocks": "unlocked",
        "input_sets": "3",
        "launches_per_sample": "1",
        "stop_reason": "the order was decided",
        "seed": "0",
    }
    assert first.host_launch_s == 2.5e-05
    other, reference = attempts["sm80:b"].measurement, attempts["ref:fa2"].measurement
    assert other is not None
    assert reference is not None
    assert other.samples_s == (3e-3, 4e-3)
    assert reference.samples_s == (9e-3, 9.5e-3)


@pytest.mark.parametrize("clock_hz", [None, math.nan])
def test_a_clock_that_nobody_read_is_no_counter(clock_hz: float | None) -> None:
    measurement = measure(plan(a={"clock_hz": clock_hz}))["sm80:a"].measurement
    assert measurement is not None
    assert measurement.counters == {}


@pytest.mark.parametrize(
    ("what", "outcome", "reason"),
    [
        ("exit", Outcome.CRASHED, "exited with status 11"),
        ("sticky_error", Outcome.CRASHED, "an illegal memory access was encountered"),
        ("hang", Outcome.TIMED_OUT, "silent for 0.8 s"),
        ("wrong", Outcome.WRONG_RESULT, "error 0.5 exceeds 0.001"),
    ],
)
def test_a_failed_item_costs_only_itself(what: str, outcome: Outcome, reason: str) -> None:
    attempts = measure(plan(("fa2",), a={}, b={"do": what}, c={"samples_s": [5e-3, 6e-3]}))
    failed_item = attempts.pop("sm80:b")
    assert failed_item.outcome is outcome
    assert reason in failed_item.reason
    assert failed_item.measurement is None
    kept = {s: a.measurement.samples_s for s, a in attempts.items() if a.measurement}
    assert kept == {
        "ref:fa2": (9e-3, 9.5e-3),
        "sm80:a": (1e-3, 2e-3),
        "sm80:c": (5e-3, 6e-3),
    }


def test_every_sample_is_a_step_and_none_is_taken_twice() -> None:
    steps: list[str] = []
    wanted = plan(a={}, b={"do": "exit"}, c={})
    list(EventsProfiler().measure(wanted, steps.append))
    assert sorted(steps) == ["sm80:a", "sm80:a", "sm80:b", "sm80:c", "sm80:c"]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a worker would be given; none is started."""
    seen: dict[str, Any] = {}

    def run_items(handler: str, shared: Any, items: Any, **more: Any) -> list[Any]:
        seen.update(shared=shared, items=items, **more)
        return []

    monkeypatch.setattr(events, "run_items", run_items)
    return seen


def test_what_the_worker_is_told(told: dict[str, Any]) -> None:
    wanted = replace(plan(a={}), keep=("sm80:a",))
    assert list(events.of_regime("sustained").measure(wanted, lambda _: None)) == []
    assert told["shared"]["sustained_s"] >= 1.0
    assert told["shared"]["baseline"] == "", "each is as long as the clock takes to settle"
    assert list(events.of_regime("isolated").measure(wanted, lambda _: None)) == []
    assert (told["shared"]["sustained_s"], told["shared"]["baseline"]) == (0.0, "sm80:a")
    assert events.of_regime("sustained").method != EventsProfiler.method
    wanted = replace(
        plan(("fa2",), a={}),
        runs=7,
        seed=3,
        keep=("sm80:a",),
        device=1,
        inputs=InputSpec.parse("falling"),
    )
    assert list(EventsProfiler(check=False).measure(wanted, lambda _: None)) == []
    expected = {
        "device": 1,
        "workload": WORKLOAD.key,
        "runs": 7,
        "seed": 3,
        "keep": ["sm80:a"],
        "baseline": "sm80:a",
        "check": False,
        "inputs": "falling",
    }
    assert told["shared"].items() >= expected.items()
    assert list(told["items"]) == ["ref:fa2", "sm80:a"]
    assert told["items"]["sm80:a"]["symbols"] == ["a"]
    assert told["item_timeout_s"] == wanted.item_timeout_s


@pytest.mark.parametrize(
    ("keep", "baseline"),
    [
        (("sm80:a", "sm80:b"), "sm80:a"),
        (("sm80:failed", "sm80:b"), "sm80:b"),
        (("sm80:failed",), ""),
        ((), ""),
    ],
)
def test_the_baseline_is_measured_here(
    told: dict[str, Any], keep: tuple[str, ...], baseline: str
) -> None:
    list(EventsProfiler().measure(replace(plan(a={}, b={}), keep=keep), lambda _: None))
    assert told["shared"]["baseline"] == baseline


def _round(number: int, opening_s: float) -> dict[str, Any]:
    reading = {"sm_clock_hz": 1.8e9, "power_w": 600.0, "temperature_c": 60.0, "reasons": []}
    times = {"opening_s": opening_s, "closing_s": opening_s}
    return {"number": number, **times, "reading": reading, "flags": []}


@dataclass
class Worker:
    """In the place of one that has measured: each item has the same value."""

    monkeypatch: pytest.MonkeyPatch

    def says(self, *names: str, **value: Any) -> EventsProfiler:
        whole = {**events_child.VALUE, "samples_s": [1e-3], **value}
        results = [ItemResult(f"sm80:{name}", Outcome.OK, whole, "") for name in names]
        self.monkeypatch.setattr(events, "run_items", lambda *_, **__: results)
        return EventsProfiler(check=False)


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    return Worker(monkeypatch)


def test_flags_and_drift_are_conditions_and_warnings(worker: Worker) -> None:
    rounds = [_round(i, 1e-3 * (1 + 0.005 * i)) for i in range(9)]
    why = "the clock is off by -5.0 %"
    profiler = worker.says("a", flagged={"4": why}, rounds=rounds)
    wanted = replace(plan(a={}), keep=("sm80:a",))
    (attempt,) = profiler.measure(wanted, lambda _: None)
    assert attempt.measurement is not None
    conditions = attempt.measurement.conditions
    assert conditions["flagged_rounds"] == f"4: {why}"
    assert json.loads(conditions["rounds"]) == rounds
    assert conditions["drift"] == "+0.0299"
    flagged, drifted = profiler.notes.warnings
    assert f"1 of 9 rounds are flagged ({why})" in flagged
    assert "sm80:a took +3.0 %" in drifted
    assert events.run_drift([1.0] * 5) is None
    assert events.run_drift([1.0, 1.0, 5.0, 5.0, 1.1, 1.1]) == pytest.approx(0.1)


def test_single_launches_and_flags_of_very_many_rounds_are_told(worker: Worker) -> None:
    why = "sm80:a cannot be captured in a graph: it allocates"
    profiler = worker.says("a", "b", no_graph=why)
    found = list(profiler.measure(plan(a={}, b={}), lambda _: None))
    assert {a.measurement.conditions["no_graph"] for a in found if a.measurement} == {why}
    (warning,) = profiler.warnings
    assert WORKLOAD.key in warning
    assert why in warning
    profiler = worker.says(
        "a",
        flagged={str(i): "hardware power brake" for i in range(900)},
        rounds=[_round(i, 1e-3) for i in (*range(100), *range(900, 1000))],
    )
    list(profiler.measure(plan(a={}), lambda _: None))
    (flagged,) = profiler.notes.warnings
    assert "900 of 1000 rounds are flagged" in flagged
