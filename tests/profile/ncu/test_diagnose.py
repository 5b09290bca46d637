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

# name, ncu's exit status, words the advice must contain, error, fatal
ROWS: list[tuple[str, int | None, tuple[str, ...], type[FaTuneError] | None, bool]] = [
    (
        "counters-forbidden",
        0,
        ("NVreg_RestrictProfilingToAdminUsers=0", "SYS_ADMIN", "--profiler events"),
        ToolMissing,
        True,
    ),
    ("counter-library", 9, ("newer ncu", "container", "--profiler events"), ToolMissing, True),
    ("counters-in-use", 9, ("dcgmi profile --pause", "--resume"), ToolMissing, True),
    ("no-kernels", 0, ("flash_fwd_kernel", "cudnn_generated"), NoUsableVariant, True),
    ("driver-too-old", 11, ("update the driver",), ToolMissing, True),
    ("lock-file", 9, ("TMPDIR",), ToolMissing, True),
    ("clocks-not-lockable", 9, ("--clock-control none",), ToolMissing, True),
    ("memory-not-saved", 9, ("--profiler events", "smaller"), NoUsableVariant, True),
    ("unknown-metric", 1, ("flop_count_sp, sm__no_such_cycles.avg;",), InvalidConfig, True),
    ("metrics-unavailable", 0, ("6 metrics", "ctc__rx_bytes_data_user.sum"), None, False),
    ("ended-early", 1, ("stderr",), NoUsableVariant, True),
    ("injection-conflict", 9, ("CUDA_INJECTION64_PATH=none",), ToolMissing, True),
    ("timed-out", None, ("did not end in time",), NoUsableVariant, True),
    ("unknown-option", 1, ("--pipeline-boost-state", "newer ncu"), ToolMissing, True),
    ("profiling-failed", 9, ("CUDA release",), ToolMissing, True),
    ("clocks-were-locked", 0, ("left the GPU's clocks locked",), None, False),
    ("failed", 134, ("error code (134)",), NoUsableVariant, True),
]


@pytest.mark.parametrize(("name", "exit_code", "words", "error", "fatal"), ROWS)
def test_each_failure_is_recognised_in_its_log(
    name: str,
    exit_code: int | None,
    words: tuple[str, ...],
    error: type[FaTuneError] | None,
    fatal: bool,
) -> None:
    diagnosis = diagnose_log((FAILURES / f"{name}.log").read_text(), exit_code=exit_code)
    assert diagnosis is not None
    assert diagnosis.name == name
    assert diagnosis.fatal is fatal
    assert "\n" not in diagnosis.message
    for word in words:
        assert word in diagnosis.message
    if error is not None:
        assert diagnosis.error is error
        assert type(diagnosis.exception()) is error
        assert str(diagnosis.exception()) == diagnosis.message


def test_every_recorded_log_is_in_the_table() -> None:
    assert {p.stem for p in FAILURES.glob("*.log")} == {row[0] for row in ROWS}


@pytest.mark.parametrize("name", [row[0] for row in ROWS])
def test_a_fatal_cause_is_found_whatever_the_exit_status(name: str) -> None:
    """A permission error can end in 0; a hang that follows a known cause is that cause's."""
    if name in ("timed-out", "failed", "metrics-unavailable", "clocks-were-locked"):
        return
    log = (FAILURES / f"{name}.log").read_text()
    for exit_code in (0, 1, 9, None):
        diagnosis = diagnose_log(log, exit_code=exit_code)
        assert diagnosis is not None
        assert diagnosis.name == name


def test_success_has_no_diagnosis() -> None:
    log = (
        "==PROF== Connected to process 7 (/usr/bin/python3.12)\n"
        '==PROF== Profiling "k" - 0: 0%....50%....100% - 3 passes\n'
        "==PROF== Disconnected from process 7\n"
    )
    assert diagnose_log(log, exit_code=0) is None


@pytest.mark.parametrize("log", ["", "\n"])
def test_silence_is_a_timeout_or_a_failure_by_how_it_ended(log: str) -> None:
    assert diagnose_log(log, exit_code=0) is None
    timed_out, failed = diagnose_log(log, exit_code=None), diagnose_log(log, exit_code=3)
    assert timed_out is not None
    assert timed_out.name == "timed-out"
    assert failed is not None
    assert failed.message == "ncu ended with status 3 and said nothing"


def test_a_helper_process_without_cuda_is_no_failure() -> None:
    """`--target-processes all` reports every child that never called CUDA."""
    log = (
        "==PROF== Connected to process 3300 (/usr/bin/python3.10)\n"
        "==PROF== Target process 3323 terminated before first instrumented API call.\n"
        "==PROF== Disconnected from process 3300\n"
    )
    assert diagnose_log(log, exit_code=0) is None


def test_a_note_does_not_hide_a_failure() -> None:
    log = (FAILURES / "metrics-unavailable.log").read_text()
    note, failure = diagnose_log(log, exit_code=0), diagnose_log(log, exit_code=2)
    assert note is not None
    assert not note.fatal
    assert failure is not None
    assert failure.name == "failed"
    assert failure.fatal


def test_the_program_talking_of_memory_is_not_ncu_failing_to_save_it() -> None:
    assert (
        diagnose_log("torch: CUDA out of memory, retrying\nlock file taken\n", exit_code=0) is None
    )


def test_an_unrecognised_error_is_quoted() -> None:
    diagnosis = diagnose_log("==ERROR== Something new happened.\n", exit_code=1)
    assert diagnosis is not None
    assert diagnosis.message == "ncu ended with status 1: Something new happened."


def test_a_long_list_of_kernels_is_shortened() -> None:
    kernels = "".join(f"{i}. kernel_{i}\n" for i in range(1, 31))
    log = f"==WARNING== No kernels were profiled.\nAvailable Kernels:\n{kernels}"
    diagnosis = diagnose_log(log, exit_code=0)
    assert diagnosis is not None
    assert diagnosis.message.endswith("kernel_8 and 22 more")


def test_no_kernels_and_no_list() -> None:
    diagnosis = diagnose_log("==WARNING== No kernels were profiled.\n", exit_code=0)
    assert diagnosis is not None
    assert "profiler start and stop" in diagnosis.message
