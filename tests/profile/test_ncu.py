"""The ncu profiler against a program that plays ncu and a handler that plays the GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_tune.errors import FaTuneError, InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.jobs import WorkerUnusable
from fa_tune.model import Artifact, Attempt, DType, Outcome, Quantity, Resources, Variant, Workload
from fa_tune.profile import ncu
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.metrics import CYCLES, DRAM_CLOCK, DURATION, L2_HIT_RATE, REGISTERS, SM_CLOCK
from fa_tune.profile.ncu import NcuProfiler

HERE = Path(__file__).parent
FAILURES = HERE / "data" / "failures"
WORKLOAD = Workload(1, 2, 2, 128, 128, 64, DType.FP16)
BOTH = ("fa2", "cudnn")
SILENCE_S = 0.6  # the time limit of a hanging item; ample for a report on a busy machine
NS = 1e-9


class FakeNcu:
    """The stand-in's path, its behaviour, and what it was asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "ncu"
        self.path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{HERE}/fake_ncu.py" "$@"\n')
        self.path.chmod(0o755)
        self._calls = folder / "calls.jsonl"
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("FAKE_NCU_CALLS", str(self._calls))
        self.behave()

    def behave(self, **behaviour: Any) -> None:
        self._monkeypatch.setenv("FAKE_NCU", json.dumps(behaviour))

    @property
    def calls(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._calls.read_text().splitlines()]

    @property
    def profiled(self) -> list[dict[str, Any]]:
        """The calls that ran a program."""
        return [call for call in self.calls if call["program"]]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNcu:
    monkeypatch.setattr(ncu, "HANDLER", "tests.profile.ncu_child:handle")
    return FakeNcu(tmp_path, monkeypatch)


def artifact(name: str, behaviour: str) -> Artifact:
    resources = Resources(168, 0, 0, 0, 0, 49152, 128, 2)
    variant = Variant("sm80", name)
    return Artifact(variant, "plain", "sm_90", behaviour, f"_Z{len(name)}{name}", resources)


def plan(*behaviours: str, references: tuple[str, ...] = (), **changes: Any) -> MeasurePlan:
    """Variants a, b, c, … with these behaviours."""
    made = [artifact(name, b) for name, b in zip("abcdefgh", behaviours, strict=False)]
    artifacts = {a.variant.key: a for a in made}
    return MeasurePlan(WORKLOAD, artifacts, references, item_timeout_s=30.0, **changes)


def hanging(*behaviours: str, **changes: Any) -> MeasurePlan:
    """A plan whose patience is short."""
    return replace(plan(*behaviours, **changes), item_timeout_s=SILENCE_S)


def measure(profiler: NcuProfiler, wanted: MeasurePlan) -> dict[str, Attempt]:
    """Attempts by subject; every subject of the plan must have exactly one."""
    attempts = list(profiler.measure(wanted, lambda _: None))
    assert sorted(a.subject for a in attempts) == sorted(wanted.subjects)
    return {a.subject: a for a in attempts}


def samples_ns(attempt: Attempt) -> list[int]:
    assert attempt.outcome is Outcome.OK, attempt.reason
    assert attempt.measurement is not None
    return [round(s / NS) for s in attempt.measurement.samples_s]


def outcomes(attempts: dict[str, Attempt]) -> dict[str, Outcome]:
    return {subject.removeprefix("sm80:"): a.outcome for subject, a in attempts.items()}


# Everything is well ---------------------------------------------------------------------------


def test_every_subject_gets_its_samples_in_base_units(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path)
    steps: list[str] = []
    wanted = plan("5000", "7000", "1234567", references=BOTH, runs=2)
    attempts = {a.subject: a for a in profiler.measure(wanted, steps.append)}
    assert {s: samples_ns(a) for s, a in attempts.items()} == {
        "ref:fa2": [9000, 9001],
        "ref:cudnn": [4000, 4001],
        "sm80:a": [5000, 5001],
        "sm80:b": [7000, 7001],
        "sm80:c": [1234567, 1234568],
    }
    assert sorted(steps) == sorted([*wanted.subjects] * 2)


def test_a_measurement_says_what_was_counted_and_how(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path)
    measurement = measure(profiler, plan("5000", runs=1))["sm80:a"].measurement
    assert measurement is not None
    assert measurement.method == "ncu"
    assert measurement.workload == WORKLOAD.key
    assert measurement.counters == {
        CYCLES: Quantity(8775.0, "cycle"),
        SM_CLOCK: Quantity(1_755_000_000.25, "hz"),
        DRAM_CLOCK: Quantity(1_755_000_000.25, "hz"),
        L2_HIT_RATE: Quantity(87.5, "%"),
        REGISTERS: Quantity(168.0, "register/thread"),
        "profiler__replayer_passes": Quantity(3.0, "pass"),
    }
    assert measurement.conditions == {
        "clocks": "none, boost dynamic",
        "cache": "flush all",
        "ncu": "2025.3.1",
        "replay": "kernel",
    }


def test_one_process_for_many_and_its_arguments_are_the_recorded_ones(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path)
    measure(profiler, plan("5000", "6000", "7000", references=BOTH, runs=3))
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


def test_references_alone_can_be_measured(fake: FakeNcu) -> None:
    assert samples_ns(measure(NcuProfiler(ncu=fake.path), plan(references=("fa2",)))["ref:fa2"])


@pytest.mark.parametrize("seed", range(4))
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


# Somebody strikes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "where", "reason"),
    [
        ("segfault", "1", "exited with status 139 (SIGSEGV)"),
        ("poison", "prepare", "an illegal memory access was encountered"),
        ("poison", "0", "an illegal memory access was encountered"),
    ],
)
def test_a_crash_costs_only_the_culprit(fake: FakeNcu, fault: str, where: str, reason: str) -> None:
    wanted = plan("5000", f"6000:{fault} in {where}", "7000", references=BOTH, runs=2)
    attempts = measure(NcuProfiler(ncu=fake.path), wanted)
    culprit = attempts.pop("sm80:b")
    assert culprit.outcome is Outcome.CRASHED
    assert reason in culprit.reason
    assert culprit.measurement is None
    assert {s: len(samples_ns(a)) for s, a in attempts.items()} == dict.fromkeys(attempts, 2)
    assert len(fake.profiled) == 2, "one process per culprit, and one"


def test_two_culprits_are_both_named(fake: FakeNcu) -> None:
    wanted = plan("5000", "6000:segfault in 0", "7000:poison in prepare", "8000")
    assert outcomes(measure(NcuProfiler(ncu=fake.path), wanted)) == {
        "a": Outcome.OK,
        "b": Outcome.CRASHED,
        "c": Outcome.CRASHED,
        "d": Outcome.OK,
    }
    assert len(fake.profiled) == 3


def test_a_refusal_costs_no_process(fake: FakeNcu) -> None:
    wanted = plan("5000", "6000:refuse in prepare", "7000", runs=2)
    attempts = measure(NcuProfiler(ncu=fake.path), wanted)
    assert attempts["sm80:b"].outcome is Outcome.CRASHED
    assert attempts["sm80:b"].reason == "out of GPU memory: tried to allocate"
    assert samples_ns(attempts["sm80:a"]) == [5000, 5001]
    assert len(fake.profiled) == 1


def test_a_hang_is_timed_out_and_the_others_finish(fake: FakeNcu) -> None:
    wanted = hanging("5000", "6000:hang in prepare", "7000")
    attempts = measure(NcuProfiler(ncu=fake.path), wanted)
    assert outcomes(attempts) == {"a": Outcome.OK, "b": Outcome.TIMED_OUT, "c": Outcome.OK}
    assert "silent for 0.6 s" in attempts["sm80:b"].reason


BEFORE_D = 3  # of the subjects below, in the order that seed SEED draws
SEED = 7


@pytest.mark.parametrize("rows", [None, 0, 1, BEFORE_D])
def test_a_log_cut_off_when_ncu_is_ended(fake: FakeNcu, rows: int | None) -> None:
    """However much of it is left: nobody's time is made up, and what is whole is not redone."""
    fake.behave(on_sigterm=rows)
    wanted = hanging("5000", "6000", "7000", "8000:hang in 0", "9000", "9500", seed=SEED)
    steps: list[str] = []
    attempts = {a.subject: a for a in NcuProfiler(ncu=fake.path).measure(wanted, steps.append)}
    assert attempts.pop("sm80:d").outcome is Outcome.TIMED_OUT
    found = {s.removeprefix("sm80:"): samples_ns(a) for s, a in attempts.items()}
    assert found == {"a": [5000], "b": [6000], "c": [7000], "e": [9000], "f": [9500]}
    assert len(steps) == BEFORE_D + len(found) - (rows or 0)


# ncu itself does not work ---------------------------------------------------------------------


def refused(profiler: NcuProfiler, wanted: MeasurePlan) -> FaTuneError:
    with pytest.raises(FaTuneError) as caught:
        list(profiler.measure(wanted, lambda _: None))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize(
    ("log", "stops", "advice"),
    [
        ("counters-forbidden", False, "--profiler events"),
        ("counters-forbidden", True, "--profiler events"),
        ("counter-library", True, "--profiler events"),
        ("counters-in-use", True, "dcgmi profile --pause"),
        ("driver-too-old", False, "update the driver"),
        ("lock-file", True, "TMPDIR"),
        ("clocks-not-lockable", True, "--clock-control none"),
        ("injection-conflict", True, "CUDA_INJECTION64_PATH=none"),
        ("profiling-failed", True, "--profiler events"),
    ],
)
def test_what_ncu_lacks_is_one_line_and_nobodys_fault(
    fake: FakeNcu, log: str, stops: bool, advice: str
) -> None:
    """`stops`: ncu ends the program, whose item is then under way, and not only its own work."""
    fake.behave(log=(FAILURES / f"{log}.log").read_text(), stops=stops, status=9 if stops else 0)
    error = refused(NcuProfiler(ncu=fake.path), plan("5000", "6000"))
    assert isinstance(error, ToolMissing)
    assert advice in str(error)
    assert len(fake.profiled) == 1, "it would not go better a second time"


def test_no_kernel_was_profiled(fake: FakeNcu) -> None:
    fake.behave(log=(FAILURES / "no-kernels.log").read_text())
    error = refused(NcuProfiler(ncu=fake.path), plan("5000"))
    assert isinstance(error, NoUsableVariant)
    assert "no kernel matched the filter" in str(error)


def test_ncu_that_fails_without_a_word(fake: FakeNcu) -> None:
    fake.behave(status=77)
    error = refused(NcuProfiler(ncu=fake.path), plan("5000"))
    assert "ncu ended with status 77" in str(error)


def test_a_note_of_ncus_is_passed_on_and_the_result_stays(fake: FakeNcu) -> None:
    note = (FAILURES / "metrics-unavailable.log").read_text().splitlines()[2]
    profiler = NcuProfiler(ncu=fake.path)
    good = fake_log("_Z1a", 5000)
    fake.behave(log=f"{note}\n{good}")
    assert samples_ns(measure(profiler, plan("5000"))["sm80:a"]) == [5000]
    assert len(profiler.notes.warnings) == 1
    assert "could not read 6 metrics" in profiler.notes.warnings[0]


def test_a_kernel_of_another_program_is_not_taken_for_ours(fake: FakeNcu) -> None:
    fake.behave(log=fake_log("_Z7strange", 5000))
    error = refused(NcuProfiler(ncu=fake.path), plan("5000"))
    assert "another program used the GPU" in str(error)


def test_a_launch_without_a_duration_gives_no_time(fake: FakeNcu) -> None:
    fake.behave(log=fake_log("_Z1a", "n/a"))
    attempt = measure(NcuProfiler(ncu=fake.path), plan("5000"))["sm80:a"]
    assert attempt.outcome is Outcome.CRASHED
    assert "without a result" in attempt.reason


def fake_log(kernel: str, duration: object) -> str:
    from tests.profile.ncu_text import PREAMBLE, identity, raw

    return PREAMBLE + raw([(DURATION, "ns")], (identity(kernel=kernel), [str(duration)]))


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


def test_a_report_is_kept_and_read_back(fake: FakeNcu, tmp_path: Path) -> None:
    report = tmp_path / "kept.ncu-rep"
    profiler = NcuProfiler(ncu=fake.path, export=report)
    attempts = measure(profiler, plan("5000", "6000", references=BOTH, runs=2))
    assert samples_ns(attempts["sm80:b"]) == [6000, 6001]
    assert report.exists()
    assert any("--import" in call["arguments"] for call in fake.calls)


def test_an_old_report_is_not_taken_for_a_new_one(fake: FakeNcu, tmp_path: Path) -> None:
    report = tmp_path / "kept.ncu-rep"
    report.write_text(fake_log("_Z1b", 1))
    wanted = hanging("5000", "6000:hang in 0", "7000")
    attempts = measure(NcuProfiler(ncu=fake.path, export=report), wanted)
    assert outcomes(attempts) == {"a": Outcome.OK, "b": Outcome.TIMED_OUT, "c": Outcome.OK}
    assert samples_ns(attempts["sm80:a"]) == [5000]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Version 2021.2.0.0", "too old"),
        ("GNU coreutils 9.4", "no Nsight Compute"),
    ],
)
def test_a_program_that_is_no_usable_ncu(fake: FakeNcu, text: str, said: str) -> None:
    fake.behave(version=text)
    with pytest.raises(ToolMissing, match=said):
        _ = NcuProfiler(ncu=fake.path).arguments


def test_a_path_that_is_no_program(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="give ncu's path with --ncu"):
        _ = NcuProfiler(ncu=tmp_path / "nowhere").version


def test_without_ncu_the_advice_names_what_works_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise ToolMissing("ncu not found; use --profiler events")

    monkeypatch.setattr(ncu, "find_ncu", nowhere)
    with pytest.raises(ToolMissing, match="--profiler events"):
        NcuProfiler()


def test_clock_and_cache_policy_are_passed_on_and_stated(fake: FakeNcu) -> None:
    profiler = NcuProfiler(ncu=fake.path, clock_control="base", cache_control="none")
    assert profiler.clock_policy == "base, boost stable"
    assert profiler.cache_policy == "flush none"
    given = dict(zip(profiler.arguments, profiler.arguments[1:], strict=False))
    assert (given["--clock-control"], given["--cache-control"]) == ("base", "none")


def test_a_measurement_given_up_leaves_no_process(fake: FakeNcu) -> None:
    attempts: Iterator[Attempt] = NcuProfiler(ncu=fake.path).measure(
        plan("5000", "6000"), lambda _: None
    )
    next(attempts)
    attempts.close()  # type: ignore[attr-defined]
    assert len(fake.profiled) == 1


# Several GPUs -----------------------------------------------------------------------------------


def test_a_plan_for_one_board_pins_the_program_to_it(fake: FakeNcu) -> None:
    list(NcuProfiler(ncu=fake.path).measure(plan("5000", board="GPU-7"), lambda _: None))
    list(NcuProfiler(ncu=fake.path).measure(plan("5000"), lambda _: None))
    first, second = fake.profiled
    assert first["CUDA_VISIBLE_DEVICES"] == "GPU-7"
    assert second["CUDA_VISIBLE_DEVICES"] != "GPU-7"
    assert first["TMPDIR"] != second["TMPDIR"], "each its own lock file"


def test_a_program_that_somebody_killed_is_tried_again_once(
    fake: FakeNcu,
) -> None:
    wanted = plan("5000", "6000:killed-once in 0", "7000:killed in 0", runs=2)
    found = measure(NcuProfiler(ncu=fake.path), wanted)
    assert samples_ns(found["sm80:b"]) == [6000, 6001]
    assert samples_ns(found["sm80:a"]) == [5000, 5001]
    assert found["sm80:c"].outcome is Outcome.CRASHED
    assert "SIGKILL" in found["sm80:c"].reason or "137" in found["sm80:c"].reason


def test_a_gpu_that_is_gone_says_nothing_of_the_kernels(fake: FakeNcu) -> None:
    with pytest.raises(WorkerUnusable, match="cannot start: RuntimeError: no CUDA-capable device"):
        measure(NcuProfiler(ncu=fake.path), plan("5000", board="GPU-gone"))
