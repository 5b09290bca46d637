"""An ncu that does not work is one line of advice, and no fault of a kernel."""

from __future__ import annotations

import pytest

from fa_tune.core.errors import NoUsableVariant, ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.profile.ncu.profiler import NcuProfiler
from tests.profile.ncu.ncu_bench import (
    FAILURES,
    FakeNcu,
    fake_log,
    measure,
    plan,
    refused,
    samples_ns,
)


@pytest.mark.parametrize(
    ("log", "stops", "advice"),
    [
        ("counters-forbidden", False, "--profiler events"),
        ("counters-forbidden", True, "--profiler events"),
        ("lock-file", True, "TMPDIR"),
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


def test_no_time_is_made_of_what_ncu_did_not_measure(fake: FakeNcu) -> None:
    fake.behave(log=(FAILURES / "no-kernels.log").read_text())
    error = refused(NcuProfiler(ncu=fake.path), plan("5000"))
    assert isinstance(error, NoUsableVariant)
    assert "no kernel matched the filter" in str(error)
    fake.behave(status=77)
    error = refused(NcuProfiler(ncu=fake.path), plan("5000"))
    assert "ncu ended with status 77" in str(error)
    fake.behave(log=fake_log("_Z7strange", 5000))
    error = refused(NcuProfiler(ncu=fake.path), plan("5000"))
    assert "another program used the GPU" in str(error)
    fake.behave(log=fake_log("_Z1a", "n/a"))
    attempt = measure(NcuProfiler(ncu=fake.path), plan("5000"))["sm80:a"]
    assert attempt.outcome is Outcome.CRASHED
    assert "without a result" in attempt.reason


def test_a_note_of_ncus_is_passed_on_and_the_result_stays(fake: FakeNcu) -> None:
    note = (FAILURES / "metrics-unavailable.log").read_text().splitlines()[2]
    profiler = NcuProfiler(ncu=fake.path)
    good = fake_log("_Z1a", 5000)
    fake.behave(log=f"{note}\n{good}")
    assert samples_ns(measure(profiler, plan("5000"))["sm80:a"]) == [5000]
    assert len(profiler.notes.warnings) == 1
    assert "could not read 6 metrics" in profiler.notes.warnings[0]
