"""The ncu profiler against a program that plays ncu and a handler that plays the GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.model import Attempt, Outcome, Quantity
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.ncu import profiler as ncu
from fa_tune.profile.ncu.metrics import (
    CYCLES,
    DRAM_CLOCK,
    DURATION,
    L2_HIT_RATE,
    RANK,
    REGISTERS,
    REPLAY_PASSES,
    SM_CLOCK,
)
from fa_tune.profile.ncu.profiler import NcuProfiler
from tests.profile.ncu.ncu_bench import (
    BOTH,
    NS,
    WORKLOAD,
    FakeNcu,
    fake_log,
    hanging,
    measure,
    outcomes,
    plan,
    refused,
    samples_ns,
)


def test_every_subject_gets_its_samples_and_counters_from_one_process(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path)
    steps: list[str] = []
    wanted = plan("5000", "7000", "1234567", references=BOTH, runs=2)
    attempts = {a.subject: a for a in profiler.measure_all([wanted], steps.append)}
    assert {s: samples_ns(a) for s, a in attempts.items()} == {
        "ref:fa2": [9000, 9001],
        "ref:cudnn": [4000, 4001],
        "sm80:a": [5000, 5001],
        "sm80:b": [7000, 7001],
        "sm80:c": [1234567, 1234568],
    }
    assert sorted(steps) == sorted([*wanted.subjects] * 2)
    measurement = attempts["sm80:a"].measurement
    assert measurement is not None
    assert (measurement.method, measurement.workload) == ("ncu", WORKLOAD.key)
    assert set(measurement.counters) == {*RANK, REPLAY_PASSES} - {DURATION}
    assert measurement.counters.items() >= {
        (CYCLES, Quantity(8776.0, "cycle")),
        (SM_CLOCK, Quantity(1_755_000_000.25, "hz")),
        (DRAM_CLOCK, Quantity(1_755_000_000.25, "hz")),
        (L2_HIT_RATE, Quantity(87.5, "%")),
        (REGISTERS, Quantity(168.0, "register/thread")),
        (REPLAY_PASSES, Quantity(3.0, "pass")),
    }
    assert measurement.conditions == {
        "clocks": "none, boost dynamic",
        "cache": "flush all",
        "ncu": "2025.3.1",
        "replay": "kernel",
    }
    (call,) = fake.profiled
    log = call["arguments"][call["arguments"].index("--log-file") + 1]
    recorded = [log if word == "LOG" else word for word in profiler.arguments]
    assert call["arguments"][: len(recorded)] == recorded
    assert Path(call["TMPDIR"]) == Path(log).parent, "ncu's lock file must be of this run alone"
    assert not Path(log).exists(), "what a run needs is removed with it"


def test_a_batch_has_a_bound_and_references_are_in_the_first(
    fake: FakeNcu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu, "BATCH", 2)
    attempts = measure(NcuProfiler(ncu=fake.path), plan("1", "2", "3", "4", "5", references=BOTH))
    assert set(outcomes(attempts).values()) == {Outcome.OK}
    assert len(fake.profiled) == 3


# Several workloads -------------------------------------------------------------------------------

LONGER = replace(WORKLOAD, seq_len_q=256, seq_len_kv=256)


def of_each(profiler: NcuProfiler, *plans: MeasurePlan) -> dict[str, dict[str, Attempt]]:
    """Attempts by workload and subject, measured at once."""
    found: dict[str, dict[str, Attempt]] = {p.workload.key: {} for p in plans}
    for attempt in profiler.measure_all(plans, lambda _: None):
        assert attempt.subject not in found[attempt.workload], "one attempt each"
        found[attempt.workload][attempt.subject] = attempt
    assert {k: set(f) for k, f in found.items()} == {p.workload.key: set(p.subjects) for p in plans}
    return found


@pytest.mark.parametrize("seed", range(3))
def test_several_workloads_share_a_process(fake: FakeNcu, seed: int) -> None:
    """And each gets its own launches, whichever library ends one and would begin the next."""
    short = plan("5000", references=BOTH, runs=3, seed=seed)
    long = replace(plan("7000", "8000", references=BOTH, runs=3, seed=seed), workload=LONGER)
    found = of_each(NcuProfiler(ncu=fake.path), short, long)
    assert len(fake.profiled) == 1
    samples = {
        key: {s.partition(":")[2]: sorted(samples_ns(a)) for s, a in attempts.items()}
        for key, attempts in found.items()
    }
    library = {"fa2": [9000, 9001, 9002], "cudnn": [4000, 4001, 4002]}
    assert samples[WORKLOAD.key] == library | {"a": [5000, 5001, 5002]}
    assert samples[LONGER.key] == library | {"a": [7000, 7001, 7002], "b": [8000, 8001, 8002]}


def test_a_library_alone_after_itself_gets_a_process_of_its_own(fake: FakeNcu) -> None:
    first = plan(references=("fa2",), runs=2)
    found = of_each(NcuProfiler(ncu=fake.path), first, replace(first, workload=LONGER))
    assert [sorted(samples_ns(a["ref:fa2"])) for a in found.values()] == [[9000, 9001]] * 2
    assert len(fake.profiled) == 2


def test_a_crash_costs_its_item_on_its_workload_alone(fake: FakeNcu) -> None:
    first = plan("5000", "6000:segfault in 1", runs=2)
    found = of_each(
        NcuProfiler(ncu=fake.path), first, replace(plan("5000", "7000", runs=2), workload=LONGER)
    )
    assert outcomes(found[WORKLOAD.key]) == {"a": Outcome.OK, "b": Outcome.CRASHED}
    assert outcomes(found[LONGER.key]) == {"a": Outcome.OK, "b": Outcome.OK}


def test_workloads_under_other_conditions_do_not_share(fake: FakeNcu) -> None:
    more = replace(plan("5000", runs=2), workload=LONGER)
    of_each(NcuProfiler(ncu=fake.path), plan("5000", runs=1), more)
    assert len(fake.profiled) == 2


def test_as_many_workloads_as_a_batch_takes(fake: FakeNcu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ncu, "BATCH", 3)
    more = replace(plan("5000", "6000"), workload=LONGER)
    of_each(NcuProfiler(ncu=fake.path), plan("5000", "6000"), more)
    assert len(fake.profiled) == 2, "a workload that fits into one process is not cut"


# Libraries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(2))
def test_a_reference_that_ends_a_round_and_begins_the_next(fake: FakeNcu, seed: int) -> None:
    """With few subjects that is soon the case, whatever the seed."""
    attempts = measure(NcuProfiler(ncu=fake.path), plan("5000", references=BOTH, runs=8, seed=seed))
    assert {s: len(samples_ns(a)) for s, a in attempts.items()} == dict.fromkeys(attempts, 8)
    assert set(samples_ns(attempts["ref:fa2"])) == set(range(9000, 9008))


def test_a_library_call_of_two_kernels_takes_the_time_of_both(
    fake: FakeNcu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_SPLIT_FA2", "1")
    attempts = measure(NcuProfiler(ncu=fake.path), plan("5000", references=BOTH, runs=2))
    assert samples_ns(attempts["ref:fa2"]) == [8500, 8502]
    measured = attempts["ref:fa2"].measurement
    assert measured is not None
    assert measured.counters[CYCLES].value == pytest.approx(8000 * 1.755, rel=1e-3)


# Metrics, versions, reports ---------------------------------------------------------------------


def test_a_metric_that_the_chip_lacks_is_left_out(fake: FakeNcu) -> None:
    fake.behave(lacks=[DRAM_CLOCK])
    profiler = NcuProfiler(ncu=fake.path)
    assert DRAM_CLOCK in profiler.metrics
    measurement = measure(profiler, plan("5000"))["sm80:a"].measurement
    assert measurement is not None
    assert measurement.samples_s == (5000 * NS,)
    assert DRAM_CLOCK not in measurement.counters, "an absent value is never a zero"
    assert not any(DRAM_CLOCK in argument for argument in profiler.arguments)
    # Still among those asked for: what a search is filed under must not change in its course.
    assert DRAM_CLOCK in profiler.metrics
    assert any(DRAM_CLOCK in warning for warning in profiler.notes.warnings)
    before = len(fake.calls)
    measure(profiler, plan("5000"))
    assert len(fake.calls) == before + 1, "it is asked for once only"


def test_a_chip_without_durations_is_refused(fake: FakeNcu) -> None:
    fake.behave(lacks=[DURATION])
    error = refused(NcuProfiler(ncu=fake.path), plan("5000"))
    assert isinstance(error, InvalidConfig)
    assert DURATION in str(error)


def test_the_longest_metric_list(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path, metric_list="full")
    measurement = measure(profiler, plan("5000"))["sm80:a"].measurement
    assert measurement is not None
    assert set(profiler.metrics) - {DURATION} <= set(measurement.counters)
    assert profiler.arguments[profiler.arguments.index("--set") + 1] == "full"


def test_a_report_is_kept_and_read_back_whatever_the_users_language(
    fake: FakeNcu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    report = tmp_path / "kept.ncu-rep"
    profiler = NcuProfiler(ncu=fake.path, export=report)
    attempts = measure(profiler, plan("5000", "6000", references=BOTH, runs=2))
    assert samples_ns(attempts["sm80:b"]) == [6000, 6001]
    assert report.exists()
    assert any("--import" in call["arguments"] for call in fake.calls)
    assert {call["LC_ALL"] for call in fake.calls} == {"C"}


def test_a_run_that_fails_leaves_the_report_before_it(fake: FakeNcu, tmp_path: Path) -> None:
    report = tmp_path / "kept.ncu-rep"
    report.write_text("of another day")
    fake.behave(log="==ERROR== ERR_NVGPUCTRPERM - no permission\n", status=1)
    refused(NcuProfiler(ncu=fake.path, export=report), plan("5000"))
    assert report.read_text() == "of another day"


def test_an_old_report_is_not_taken_for_a_new_one(fake: FakeNcu, tmp_path: Path) -> None:
    report = tmp_path / "kept.ncu-rep"
    report.write_text(fake_log("_Z1b", 1))
    wanted = hanging("5000", "6000:hang in 0", "7000")
    attempts = measure(NcuProfiler(ncu=fake.path, export=report), wanted)
    assert outcomes(attempts) == {"a": Outcome.OK, "b": Outcome.TIMED_OUT, "c": Outcome.OK}
    assert samples_ns(attempts["sm80:a"]) == [5000]


def test_a_path_that_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="give ncu's path with --ncu"):
        _ = NcuProfiler(ncu=tmp_path / "nowhere").version


def test_clock_and_cache_policy_are_passed_on_and_stated(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path, clock_control="base")
    assert profiler.clock_policy == "base, boost stable"
    assert profiler.cache_policy == "flush all"
    given = dict(zip(profiler.arguments, profiler.arguments[1:], strict=False))
    assert (given["--clock-control"], given["--cache-control"]) == ("base", "all")


def test_a_plan_for_one_board_pins_the_program_to_it(fake: FakeNcu) -> None:
    list(NcuProfiler(ncu=fake.path).measure_all([plan("5000", gpu="GPU-7")], lambda _: None))
    list(NcuProfiler(ncu=fake.path).measure_all([plan("5000")], lambda _: None))
    first, second = fake.profiled
    assert first["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert second["CUDA_VISIBLE_DEVICES"] != "GPU-7"
    assert first["TMPDIR"] != second["TMPDIR"], "each its own lock file"
