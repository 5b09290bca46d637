"""Kernels, programs and GPUs that fail below ncu: each costs what it must, and no more."""

from __future__ import annotations

import pytest

from fa_tune.core.model import Outcome
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.workers.supervisor import WorkerUnusable
from tests.profile.ncu.ncu_bench import BOTH, FakeNcu, hanging, measure, outcomes, plan, samples_ns


@pytest.mark.parametrize(
    ("fault", "where", "reason"),
    [
        ("segfault", "1", "exited with status 139 (SIGSEGV)"),
        ("sticky_error", "prepare", "an illegal memory access was encountered"),
        ("sticky_error", "0", "an illegal memory access was encountered"),
    ],
)
def test_a_crash_costs_only_the_failed_item(
    fake: FakeNcu, fault: str, where: str, reason: str
) -> None:
    wanted = plan("5000", f"6000:{fault} in {where}", "7000", references=BOTH, runs=2)
    attempts = measure(NcuProfiler(ncu=fake.path), wanted)
    failed_item = attempts.pop("sm80:b")
    assert failed_item.outcome is Outcome.CRASHED
    assert reason in failed_item.reason
    assert failed_item.measurement is None
    assert {s: len(samples_ns(a)) for s, a in attempts.items()} == dict.fromkeys(attempts, 2)
    assert len(fake.profiled) == 2, "one process per failed_item, and one"


def test_two_failed_items_are_both_named(fake: FakeNcu) -> None:
    wanted = plan("5000", "6000:segfault in 0", "7000:sticky_error in prepare", "8000")
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
    attempts = {
        a.subject: a for a in NcuProfiler(ncu=fake.path).measure_all([wanted], steps.append)
    }
    assert attempts.pop("sm80:d").outcome is Outcome.TIMED_OUT
    found = {s.removeprefix("sm80:"): samples_ns(a) for s, a in attempts.items()}
    assert found == {"a": [5000], "b": [6000], "c": [7000], "e": [9000], "f": [9500]}
    assert len(steps) == BEFORE_D + len(found) - (rows or 0)


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
        measure(NcuProfiler(ncu=fake.path), plan("5000", gpu="GPU-gone"))
