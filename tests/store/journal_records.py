"""Records to fill journals with."""

from __future__ import annotations

from pathlib import Path

from fa_tune.core.model import Attempt, CaseError, Measurement, Outcome, Quantity, Verdict
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal import AttemptRecord, BuildFailureRecord, Journal, Record, VerdictRecord

WORKLOAD = "b16_h16_kv16_q4096_k4096_d128_fp16_full"
FP = Fingerprint(
    "a" * 64, "13.0", "sm_90", "580.65", "NVIDIA H200", "ncu", "2025.3", ("m",), "none", "all", 5
)


def subject(i: int) -> str:
    return f"sm80:(FP16, 128, 64, 64, {i}): async+eager+swizzled+load_2_2_2_tiles"


def attempt(i: int = 4, fingerprint: Fingerprint = FP, time_s: float = 1.5e-3) -> AttemptRecord:
    measurement = Measurement(
        subject(i),
        WORKLOAD,
        "ncu",
        (time_s, 1.7670000000000001e-3),
        {"launch__registers_per_thread": Quantity(168.0, "register/thread")},
        {"l2": "cold"},
    )
    return AttemptRecord(
        fingerprint, Attempt(subject(i), WORKLOAD, Outcome.OK, "", measurement), "2026-01-02"
    )


def failed(i: int) -> AttemptRecord:
    reason = "died: “illegal memory access”\nat line 2"
    return AttemptRecord(FP, Attempt(subject(i), WORKLOAD, Outcome.CRASHED, reason))


def verdict(figure: float = 1e-3) -> VerdictRecord:
    case = CaseError(WORKLOAD, figure, 1e-3, 2e-3, figure < 2e-3)
    return VerdictRecord(FP.for_verify(), subject(1), Verdict(case.ok, (case,), "why"))


def build_failure() -> BuildFailureRecord:
    return BuildFailureRecord(
        FP.for_build(), subject(2), "traits", Outcome.COMPILE_FAILED, "static_assert: no"
    )


def fill(path: Path, *records: Record) -> Journal:
    journal = Journal(path)
    for record in records:
        journal.append(record)
    return journal
