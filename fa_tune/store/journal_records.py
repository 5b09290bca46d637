"""What a journal keeps: attempts, verdicts and failed compilations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import ClassVar

from fa_tune.core.model import Attempt, Outcome, Verdict
from fa_tune.store.fingerprint import Fingerprint


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True)
class AttemptRecord:
    """A finished attempt at measuring; `recorded_at` is UTC, ISO 8601."""

    kind: ClassVar = "attempt"
    fingerprint: Fingerprint
    attempt: Attempt
    recorded_at: str = field(default_factory=_now)

    def __post_init__(self) -> None:
        m, a = self.attempt.measurement, self.attempt
        if m is not None and (m.subject, m.workload) != (a.subject, a.workload):
            raise ValueError(f"measurement of {m.subject} in an attempt at {a.subject}")

    @property
    def about(self) -> tuple[str, str]:
        return self.attempt.subject, self.attempt.workload


@dataclass(frozen=True)
class VerdictRecord:
    """A finished verification of one subject, on all its cases."""

    kind: ClassVar = "verdict"
    fingerprint: Fingerprint
    subject: str
    verdict: Verdict
    recorded_at: str = field(default_factory=_now)

    @property
    def about(self) -> tuple[str, str]:
        """Subject, and no workload."""
        return self.subject, ""


@dataclass(frozen=True)
class BuildFailureRecord:
    """A variant that did not compile, so that a resumed search need not try again.

    `outcome` is COMPILE_FAILED, TIMED_OUT or CRASHED.
    """

    kind: ClassVar = "build_failure"
    fingerprint: Fingerprint
    subject: str
    traits: str
    outcome: Outcome
    reason: str
    recorded_at: str = field(default_factory=_now)

    @property
    def about(self) -> tuple[str, str]:
        """Subject and traits."""
        return self.subject, self.traits


Record = AttemptRecord | VerdictRecord | BuildFailureRecord
KINDS: Mapping[str, type[Record]] = {
    kind.kind: kind for kind in (AttemptRecord, VerdictRecord, BuildFailureRecord)
}
