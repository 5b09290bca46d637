"""Verdicts as verify and run show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fa_tune.commands.shared.documents import Rejected, rejected
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.output import say
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Attempt, CaseError, Outcome, Variant, Verdict, is_users, user_place
from fa_tune.tune.results import VerifyReport

RIGHT, WRONG = "✓", "✗"
_FIGURES = ("rms error", "rms limit", "largest error", "limit")  # of the case nearest a limit
_HEADINGS = ("", "Kernel Name", "cases", *_FIGURES, "of limit", "problem")


@dataclass(frozen=True)
class KernelVerdict:
    """Whether a kernel is right, and on what."""

    variant: str
    correct: bool
    reason: str | None
    cases: tuple[CaseError, ...]


@dataclass(frozen=True)
class Failure:
    """A kernel without a verdict."""

    variant: str
    outcome: Outcome
    reason: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The part of a document that says what was verified."""

    verdicts: tuple[KernelVerdict, ...]
    failures: tuple[Failure, ...]
    rejected: tuple[Rejected, ...]


def refuse_wrong(report: VerifyReport) -> None:
    """Raise NoUsableVariant unless every variant that can run gave a right result."""
    if report.failures or not all(v.correct for v in report.verdicts.values()):
        raise NoUsableVariant(verdict_sentence(report).rstrip("."))


def show_verdicts(report: VerifyReport) -> None:
    """A line per variant on standard output, wrong ones first, then those without a verdict, then
    the rest, and a sentence; nothing where nothing ran."""
    if not report.verdicts and not report.failures:
        return
    none = [""] * (len(_FIGURES) + 2)
    failures = [
        [WRONG, _name(f.subject), *none, f"{f.outcome.replace('_', ' ')}: {f.reason}"]
        for f in report.failures
    ]
    rows = [_row(key, verdict) for key, verdict in sorted(report.verdicts.items())]
    wrong, right = ([row for row in rows if row[0] == mark] for mark in (WRONG, RIGHT))
    left = {"", "Kernel Name", "problem"}
    say(fitted_table(_HEADINGS, [*wrong, *failures, *right], left, configs="Kernel Name"))
    say(verdict_sentence(report))


def verdict_sentence(report: VerifyReport) -> str:
    """`78 of 80 right, 1 wrong, 1 without a verdict; 2 not tried.`"""
    right = sum(v.correct for v in report.verdicts.values())
    text = f"{right} of {len(report.verdicts) + len(report.failures)} right"
    if wrong := len(report.verdicts) - right:
        text += f", {wrong} wrong"
    if report.failures:
        text += f", {len(report.failures)} without a verdict"
    if report.rejected:
        text += f"; {len(report.rejected)} cannot run on this GPU"
    return f"{text}."


def verified(report: VerifyReport) -> dict[str, Any]:
    """The fields of `Verified`; errors are differences to the fp64 result."""
    return {
        "verdicts": [
            KernelVerdict(key, verdict.correct, verdict.reason or None, verdict.cases)
            for key, verdict in report.verdicts.items()
        ],
        "failures": [Failure(f.subject, f.outcome, f.reason) for f in report.failures],
        "rejected": rejected(report.rejected),
    }


def _row(key: str, verdict: Verdict) -> list[str]:
    worst = max(verdict.cases, key=lambda c: c.share, default=None)
    problem = "" if verdict.correct else verdict.reason or "wrong result"
    figures = [""] * (len(_FIGURES) + 1)
    if worst is not None:
        share = f"{100 * worst.share:.0f} %"
        numbers = (worst.rms_error, worst.rms_limit, worst.max_abs_error, worst.limit)
        figures = [*("" if n is None else f"{n:.2e}" for n in numbers), share]
    mark = RIGHT if verdict.correct else WRONG
    return [mark, _name(key), str(len(verdict.cases)), *figures, problem]


def _name(subject: str) -> str:
    """A variant's short form; what the key says beyond it stays."""
    return Variant.from_key(subject).config


def check_users(attempts: Iterable[Attempt]) -> None:
    """Raise NoUsableVariant for a user's kernel that is wrong or failed; one that has no call for a
    workload was noted like a library's."""
    for a in attempts:
        if is_users(a.subject) and a.outcome not in (Outcome.OK, Outcome.REJECTED):
            place, how = user_place(a.subject), a.outcome.replace("_", " ")
            how = "does not compile" if a.outcome is Outcome.COMPILE_FAILED else how
            raise NoUsableVariant(f"--with {place}: {how} on {a.workload}: {a.reason}")
