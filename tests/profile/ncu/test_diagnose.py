"""Every failure ncu is known for is recognised in a log of it and told in one line.

`no-kernels` and `metrics-unavailable` are from recordings of our own; the other logs repeat the
sentences of published reports in the order ncu prints them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.errors import FaTuneError, InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.profile.ncu.diagnose import diagnose_log

FAILURES = Path(__file__).parent / "data" / "failures"

# name, ncu's exit status, error; a note has no error
ROWS: list[tuple[str, int | None, type[FaTuneError] | None]] = [
    ("counters-forbidden", 0, ToolMissing),
    ("counter-library", 9, ToolMissing),
    ("counters-in-use", 9, ToolMissing),
    ("no-kernels", 0, NoUsableVariant),
    ("driver-too-old", 11, ToolMissing),
    ("lock-file", 9, ToolMissing),
    ("clocks-not-lockable", 9, ToolMissing),
    ("memory-not-saved", 9, NoUsableVariant),
    ("unknown-metric", 1, InvalidConfig),
    ("metrics-unavailable", 0, None),
    ("ended-early", 1, NoUsableVariant),
    ("injection-conflict", 9, ToolMissing),
    ("timed-out", None, NoUsableVariant),
    ("unknown-option", 1, ToolMissing),
    ("profiling-failed", 9, ToolMissing),
    ("clocks-were-locked", 0, None),
    ("failed", 134, NoUsableVariant),
]
# What a message must hold, since nobody could act on it otherwise.
ADVICE = {
    "counters-forbidden": ("NVreg_RestrictProfilingToAdminUsers=0", "SYS_ADMIN", "events"),
    "no-kernels": ("flash_fwd_kernel", "cudnn_generated"),
    "unknown-metric": ("flop_count_sp, sm__no_such_cycles.avg;",),
    "metrics-unavailable": ("ctc__rx_bytes_data_user.sum",),
    "unknown-option": ("--pipeline-boost-state",),
}


@pytest.mark.parametrize(("name", "exit_code", "error"), ROWS)
def test_each_failure_is_recognised_in_its_log(
    name: str, exit_code: int | None, error: type[FaTuneError] | None
) -> None:
    log = (FAILURES / f"{name}.log").read_text()
    diagnosis = diagnose_log(log, exit_code=exit_code)
    assert diagnosis is not None
    assert diagnosis.name == name
    if error is not None and name not in ("timed-out", "failed"):
        # A permission error can end in 0; a hang that follows a known cause is that cause's.
        assert {diagnose_log(log, exit_code=code) for code in (0, 1, 9, None)} == {diagnosis}
    assert diagnosis.fatal is (error is not None)
    assert "\n" not in diagnosis.message
    assert all(word in diagnosis.message for word in ADVICE.get(name, ()))
    if error is not None:
        assert diagnosis.error is error


def test_every_recorded_log_is_in_the_table() -> None:
    assert {p.stem for p in FAILURES.glob("*.log")} == {row[0] for row in ROWS}


def test_success_has_no_diagnosis_whatever_the_program_says() -> None:
    log = (
        "==PROF== Connected to process 7 (/usr/bin/python3.12)\n"
        '==PROF== Profiling "k" - 0: 0%....50%....100% - 3 passes\n'
        "==PROF== Disconnected from process 7\n"
    )
    assert diagnose_log(log, exit_code=0) is None
    log = (
        "==PROF== Connected to process 3300 (/usr/bin/python3.10)\n"
        "==PROF== Target process 3323 terminated before first instrumented API call.\n"
        "==PROF== Disconnected from process 3300\n"
    )
    assert diagnose_log(log, exit_code=0) is None
    assert (
        diagnose_log("torch: CUDA out of memory, retrying\nlock file taken\n", exit_code=0) is None
    )


@pytest.mark.parametrize("log", ["", "\n"])
def test_silence_is_a_timeout_or_a_failure_by_how_it_ended(log: str) -> None:
    assert diagnose_log(log, exit_code=0) is None
    timed_out, failed = diagnose_log(log, exit_code=None), diagnose_log(log, exit_code=3)
    assert timed_out is not None
    assert timed_out.name == "timed-out"
    assert failed is not None
    assert failed.message == "ncu ended with status 3 and said nothing"


def test_a_note_does_not_hide_a_failure() -> None:
    log = (FAILURES / "metrics-unavailable.log").read_text()
    note, failure = diagnose_log(log, exit_code=0), diagnose_log(log, exit_code=2)
    assert note is not None
    assert not note.fatal
    assert failure is not None
    assert failure.name == "failed"
    assert failure.fatal
