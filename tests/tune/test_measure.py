"""Who gets how many samples, and what the journal spares."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.options import MeasureOptions
from fa_tune.core.workload import DType, Workload
from fa_tune.core.workload import benchmark_workload as benchmark
from fa_tune.profile.base import MeasurePlan
from fa_tune.search.decide import decide
from fa_tune.store.journal import AttemptRecord, Journal
from fa_tune.tune.measure import measured, request_for
from fa_tune.tune.session import Tally
from tests.tune import fakes
from tests.tune.fakes import H200, FakeProfiler, Stages

WORKLOAD = benchmark(1024, 128, DType.FP16)
BOTH = ("fa2", "cudnn")
REFERENCES = ("ref:fa2", "ref:cudnn")


class Bench:
    """Measures with a fake profiler and a journal in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.progress = Stages()
        self.tally = Tally()

    def measure(
        self,
        profiler: FakeProfiler,
        n: int = 3,
        *,
        workload: Workload = WORKLOAD,
        reuse: bool = True,
        journal: bool = True,
        keep: tuple[str, ...] = (),
        adaptive: bool = True,
        gpu: str = "",
        **options: object,
    ) -> dict[str, Attempt]:
        self.tally = Tally()
        session = fakes.session(
            self.folder,
            fakes.selected(profiler),
            dataclasses.replace(MeasureOptions(), **options),  # type: ignore[arg-type]
            self.progress,
            reuse=reuse,
            tally=self.tally,
            machine=fakes.machine(self.folder, device=dataclasses.replace(H200, uuid=gpu)),
        )
        how: dict[str, Any] = {"keep": keep, "adaptive": adaptive, "journaled": journal}
        request = request_for(session, workload, fakes.artifacts(n), **how)
        (attempts,) = measured(session, [request])
        found = {a.subject: a for a in attempts}
        assert len(found) == len(attempts), "one attempt each"
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def n_samples(attempts: dict[str, Attempt]) -> dict[str, int]:
    return {s: len(a.measurement.samples_s) for s, a in attempts.items() if a.measurement}


# One sample for all, the rest for the finalists -------------------------------------------------


def test_under_ncu_everyone_gets_one_sample_and_finalists_the_rest(bench: Bench) -> None:
    first, near, far, kept = fakes.keys(4)
    times = {first: 1.0, near: 1.02, far: 1.0200001, kept: 5.0}  # the bound itself is near
    profiler = FakeProfiler(lambda s, _: times.get(s, 9e-3))
    found = bench.measure(profiler, 4, keep=(kept,))
    assert n_samples(found) == {
        "ref:fa2": 3,
        "ref:cudnn": 3,
        first: 3,
        near: 3,
        far: 1,
        kept: 3,
    }
    everyone, finalists = profiler.plans
    assert (everyone.runs, finalists.runs) == (1, 2)
    assert everyone.subjects == (*REFERENCES, first, near, far, kept)
    assert finalists.subjects == (*REFERENCES, first, near, kept)
    assert finalists.seed != everyone.seed, "another order of rounds"
    assert bench.progress.stages == [
        (f"measure {WORKLOAD.key}", 6),
        (f"measure {WORKLOAD.key}", 10),
    ]
    assert len(bench.progress.steps) == 16


class Noisy(FakeProfiler):
    """The first two of `keys` take turns in being faster: the first is ahead in a single sample,
    the second in several."""

    def attempt(self, subject: str, plan: MeasurePlan) -> Attempt:
        found = super().attempt(subject, plan)
        signs = dict(zip(fakes.keys(2), (1, -1), strict=True))
        sign = signs.get(subject, 0) * (1 if plan.runs > 1 else -1)
        samples = tuple(s * (1 + 0.004 * sign) for s in found.measurement.samples_s)
        return fakes.remeasured(found, samples_s=samples)


def test_where_the_order_is_open_those_for_whom_it_is_get_more(bench: Bench) -> None:
    """Two that take turns in being faster, one clearly behind, and the default far away."""
    first, second, behind, default = fakes.keys(4)
    times = {first: 1.0e-3, second: 1.0e-3, behind: 1.013e-3, default: 1.5e-3}

    profiler = Noisy(lambda s, _: times.get(s, 9e-3))
    found = bench.measure(profiler, 4, keep=(default,))
    counts = n_samples(found)
    assert (counts[first], counts[second], counts[default]) == (9, 9, 9)
    assert counts[behind] == counts["ref:fa2"] == 3
    last = profiler.plans[-1]
    assert (last.runs, set(last.subjects)) == (6, {first, second, default})
    assert len({p.seed for p in profiler.plans}) == 3, "each part in an order of its own"
    again = bench.measure(profiler, 4, keep=(default,))
    assert again == found
    assert len(profiler.plans) == 3, "all three parts are in the journal"


def open_order() -> Noisy:
    """Two are as fast as one another, the default is far behind."""
    first, second, default = fakes.keys(3)
    times = {first: 1e-3, second: 1e-3, default: 1.5e-3}
    return Noisy(lambda s, _: times.get(s, 9e-3))


def test_more_runs_are_so_many_whatever_was_measured_before(bench: Bench) -> None:
    first, second, default = fakes.keys(3)
    assert n_samples(bench.measure(open_order(), 3, keep=(default,)))[first] == 9
    counts = n_samples(bench.measure(open_order(), 3, keep=(default,), runs=9))
    assert (counts[first], counts[second], counts[default]) == (27, 27, 27)
    assert counts["ref:fa2"] == 9
    bench.measure(open_order(), 3, keep=fakes.keys(3)[2:])
    assert set(n_samples(bench.measure(open_order(), 3, adaptive=False)).values()) == {3}


def test_parts_that_an_older_journal_has_under_the_whole_are_not_taken_for_it(bench: Bench) -> None:
    (only,) = fakes.keys(1)
    session = fakes.session(bench.folder)
    plan = MeasurePlan(WORKLOAD, fakes.artifacts(1), runs=2)
    part = FakeProfiler().attempt(only, plan)
    session.journal.append(AttemptRecord(session.fingerprint(3, ("sm80",)), part))
    found = bench.measure(FakeProfiler(), 1, adaptive=False, references=())
    assert n_samples(found) == {only: 3}


def test_samples_of_both_parts_stand_in_the_order_they_were_taken(bench: Bench) -> None:
    (only,) = fakes.keys(1)
    found = bench.measure(FakeProfiler(lambda *_: 1e-3), 1)[only].measurement
    assert found.samples_s == (1e-3, 1e-3, 1e-3 * (1 + 1e-4))


@pytest.mark.parametrize(("method", "runs"), [("events", None), ("events", 4), ("ncu", 1)])
def test_other_methods_are_asked_once(bench: Bench, method: str, runs: int | None) -> None:
    profiler = FakeProfiler(method=method, default_runs=5)
    found = bench.measure(profiler, 3, runs=runs, references=("fa2",))
    assert set(n_samples(found).values()) == {runs or 5}
    (plan,) = profiler.plans
    assert plan.runs == (runs or 5)


def test_a_finalist_that_fails_in_the_second_part_has_no_time(bench: Bench) -> None:
    leader, other = fakes.keys(2)

    class FailsLater(FakeProfiler):
        def attempt(self, subject: str, plan: MeasurePlan) -> Attempt:
            if subject == leader and plan.runs == 2:
                return Attempt(subject, plan.workload.key, Outcome.CRASHED, "illegal address")
            return super().attempt(subject, plan)

    found = bench.measure(FailsLater(lambda s, _: 1e-3 if s == leader else 1.5e-3), 2)
    assert found[leader].outcome is Outcome.CRASHED
    assert found[leader].measurement is None
    assert n_samples(found)[other] == 1


def test_the_first_samples_decide_among_our_own_only(bench: Bench) -> None:
    """A library that is twice as fast must not make losers of all of ours."""
    times = dict(zip(fakes.keys(2), (2e-3, 2.02e-3), strict=True))
    found = bench.measure(FakeProfiler(lambda s, _: times.get(s, 1e-3)), 2)
    assert set(n_samples(found).values()) == {3}


# The journal ------------------------------------------------------------------------------------


def test_only_what_is_new_is_measured(bench: Bench) -> None:
    bench.measure(FakeProfiler(), 3, references=("fa2",))
    more = FakeProfiler()
    found = bench.measure(more, 5, references=BOTH, runs=1)
    assert [s for s, _, _ in more.measured] == ["ref:cudnn", *fakes.keys(5)[3:]]
    assert list(found) == [*REFERENCES, *fakes.keys(5)], "in the order of the plan"
    assert (bench.tally.reused, bench.tally.measured) == (4, 3)


def test_fresh_measures_all_again_and_keeps_the_new(bench: Bench) -> None:
    bench.measure(FakeProfiler(lambda *_: 1e-3), 2, runs=1)
    again = FakeProfiler(lambda *_: 2e-3)
    bench.measure(again, 2, runs=1, reuse=False)
    assert len(again.measured) == 4
    found = bench.measure(FakeProfiler(), 2, runs=1)
    assert {a.measurement.samples_s for a in found.values() if a.measurement} == {(2e-3,)}


def test_times_of_two_gpus_do_not_stand_beside_each_other(bench: Bench) -> None:
    """Though nothing is missing in the journal."""
    session = fakes.session(bench.folder)
    fingerprint = session.fingerprint(1, ("sm80",))
    plan = MeasurePlan(WORKLOAD, fakes.artifacts(2), runs=1)
    for gpu, subject in zip(("GPU-a", "GPU-b"), fakes.keys(2), strict=True):
        attempt = fakes.remeasured(FakeProfiler().attempt(subject, plan), gpu_uuid=gpu)
        session.journal.append(AttemptRecord(fingerprint, attempt))
    again = FakeProfiler()
    bench.measure(again, 2, runs=1, references=(), gpu="GPU-a")
    assert [s for s, _, _ in again.measured] == [fakes.keys(2)[1]]


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.TIMED_OUT, Outcome.WRONG_RESULT])
def test_a_failure_is_remembered(bench: Bench, outcome: Outcome) -> None:
    bad = fakes.keys(2)[1]
    first = bench.measure(FakeProfiler(failures={bad: (outcome, "so it ended")}), 2)
    assert first[bad] == Attempt(bad, WORKLOAD.key, outcome, "so it ended")
    assert f"{bad}: {outcome}: so it ended" in bench.progress.warnings
    again = FakeProfiler()
    assert bench.measure(again, 2)[bad] == first[bad]
    assert again.plans == []


@pytest.mark.parametrize("after", range(1, 9))
def test_interrupted_anywhere_the_rest_and_only_the_rest_is_measured(
    bench: Bench, after: int
) -> None:
    with pytest.raises(KeyboardInterrupt):
        bench.measure(FakeProfiler(lambda *_: 1e-3, interrupt_after=after), 3)
    rest = FakeProfiler(lambda *_: 1e-3)
    found = bench.measure(rest, 3)
    assert len(rest.measured) == 10 - after, "five subjects in two parts"
    assert n_samples(found) == dict.fromkeys((*REFERENCES, *fakes.keys(3)), 3)


def test_without_a_journal_nothing_is_kept(bench: Bench, tmp_path: Path) -> None:
    bench.measure(FakeProfiler(), 2, journal=False)
    assert Journal(tmp_path / "journal.sqlite").records() == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "events"},
        {"clock_policy": "base"},
        {"metrics": ("gpu__time_duration.sum", "sm__cycles_elapsed.max")},
        {"version": "2026.1.0"},
        {"cache_policy": "flush none"},
    ],
)
def test_other_conditions_are_another_measurement(bench: Bench, changed: dict[str, object]) -> None:
    bench.measure(FakeProfiler(), 2, runs=1)
    other = FakeProfiler()
    for name, value in changed.items():
        setattr(other, name, value)
    bench.measure(other, 2, runs=1)
    assert len(other.measured) == 4


def test_a_reference_of_another_release_is_measured_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = {"torch": "2.11.0", "nvidia-cudnn-cu13": "9.13.0.50"}
    monkeypatch.setattr(importlib.metadata, "version", lambda name: installed[name])
    bench.measure(FakeProfiler(), 2, runs=1)
    again = FakeProfiler()
    bench.measure(again, 2, runs=1, seed=1)  # another order is no other condition
    assert again.plans == []
    installed["nvidia-cudnn-cu13"] = "9.19.0.1"
    bench.measure(again, 2, runs=1)
    assert [s for s, _, _ in again.measured] == ["ref:cudnn"]


def test_another_number_of_runs_is_another_measurement(bench: Bench) -> None:
    bench.measure(FakeProfiler(method="events"), 2, runs=5)
    more = FakeProfiler(method="events")
    bench.measure(more, 2, runs=7)
    assert len(more.measured) == 4


def test_an_error_of_the_profiler_keeps_what_was_finished(bench: Bench) -> None:
    class Breaks(FakeProfiler):
        def attempt(self, subject: str, plan: MeasurePlan) -> Attempt:
            if subject == fakes.keys(2)[1]:
                raise NoUsableVariant("the GPU fell off the bus")
            return super().attempt(subject, plan)

    with pytest.raises(NoUsableVariant):
        bench.measure(Breaks(), 2, runs=1)
    rest = FakeProfiler()
    bench.measure(rest, 2, runs=1)
    assert [s for s, _, _ in rest.measured] == fakes.keys(2)[1:]


# Ratios to a baseline ---------------------------------------------------------------------------

D90, A, D80, B = fakes.keys(4)  # the defaults of two families, each before a config of its own
RACE_S = {D90: 1.0e-3, A: 0.9e-3, D80: 1.5e-3, B: 1.2e-3}


class Race(FakeProfiler):
    """As `events`: each sample over the baseline's beside it.  `pace` is how slow the GPU is."""

    def __init__(self, *, pace: float = 1.0, **changes: Any) -> None:
        super().__init__(lambda s, _: pace * RACE_S[s], method="events", **changes)

    def attempt(self, subject: str, plan: MeasurePlan) -> Attempt:
        found = super().attempt(subject, plan)
        relative = (RACE_S[subject] / RACE_S[plan.baseline],) * plan.runs
        return fakes.remeasured(found, relative=relative, baseline=plan.baseline)


def chosen(found: dict[str, Attempt]) -> str:
    measurements = [a.measurement for a in found.values() if a.measurement is not None]
    return decide(measurements, D90).chosen.subject


def baselines(found: dict[str, Attempt]) -> set[str]:
    return {a.measurement.baseline for a in found.values() if a.measurement is not None}


def test_an_interrupted_race_goes_on_beside_the_same_baseline(bench: Bench) -> None:
    asked: dict[str, Any] = {"keep": (D90, D80), "references": ()}
    with pytest.raises(KeyboardInterrupt):
        bench.measure(Race(interrupt_after=2), 4, **asked)
    found = bench.measure(Race(), 4, **asked)
    assert (baselines(found), chosen(found)) == ({D90}, A)


def test_one_more_config_races_beside_the_default(bench: Bench) -> None:
    bench.measure(Race(), 3, keep=(D90,), references=())
    later = Race(pace=0.7)
    found = bench.measure(later, 4, keep=(D90,), references=())
    assert later.plans[0].subjects == (D90, B)
    assert chosen(found) == A


def test_ratios_to_another_baseline_are_measured_again(bench: Bench) -> None:
    bench.measure(Race(), 3, keep=(D90,), references=())
    other = Race()
    found = bench.measure(other, 4, keep=(D80, D90), references=())
    assert set(other.plans[0].subjects) == {D90, A, D80, B}
    assert baselines(found) == {D80}
    again = Race()
    assert bench.measure(again, 4, keep=(D80, D90), references=()) == found
    assert again.plans == []


def test_a_baseline_that_failed_leaves_its_ratios_behind(bench: Bench) -> None:
    """It ran beside the others and was found wrong afterwards."""
    failures = {D90: (Outcome.WRONG_RESULT, "so it ended")}
    bench.measure(Race(failures=failures), 3, keep=(D90, D80), references=())
    later = Race()
    found = bench.measure(later, 4, keep=(D90, D80), references=())
    assert baselines(found) == {D80}
    assert later.plans[0].subjects == (A, D80, B)
