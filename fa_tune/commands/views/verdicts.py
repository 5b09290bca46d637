"""Verdicts as verify and run show them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.core.model import Variant, Verdict
from fa_tune.tune.results import VerifyReport

RIGHT, WRONG = "✓", "✗"
_FIGURES = ("rms error", "rms limit", "largest error", "limit")  # of the case nearest a limit
_HEADINGS = ("", "Kernel Name", "cases", *_FIGURES, "of limit", "problem")


def all_right(report: VerifyReport) -> bool:
    """Whether every variant that can run gave a right result."""
    return not report.failures and all(v.correct for v in report.verdicts.values())


def verdict_table(report: VerifyReport) -> str:
    """One line per variant: wrong ones first, then those without a verdict, then the rest."""
    rows = [_row(key, verdict) for key, verdict in _by_correctness(report.verdicts)]
    none = [""] * (len(_FIGURES) + 2)
    failures = [
        [WRONG, _name(f.subject), *none, f"{f.outcome.replace('_', ' ')}: {f.reason}"]
        for f in report.failures
    ]
    wrong = [row for row in rows if row[0] == WRONG]
    right = [row for row in rows if row[0] == RIGHT]
    left = {"", "Kernel Name", "problem"}
    return fitted_table(_HEADINGS, [*wrong, *failures, *right], left, configs="Kernel Name")


def verdict_sentence(report: VerifyReport) -> str:
    """`78 of 80 right, 1 wrong, 1 without a verdict; 2 not tried.`"""
    right = sum(v.correct for v in report.verdicts.values())
    wrong = len(report.verdicts) - right
    total = len(report.verdicts) + len(report.failures)
    parts = [f"{right} of {total} right"]
    if wrong:
        parts.append(f"{wrong} wrong")
    if report.failures:
        parts.append(f"{len(report.failures)} without a verdict")
    text = ", ".join(parts)
    if report.rejected:
        text += f"; {len(report.rejected)} cannot run on this GPU"
    return text + "."


def verdict_objects(report: VerifyReport) -> dict[str, Any]:
    """The report as JSON; errors are differences to the fp64 result."""
    return {
        "verdicts": [
            {
                "variant": key,
                "correct": verdict.correct,
                "reason": verdict.reason or None,
                "cases": [
                    {
                        "workload": case.workload,
                        "max_abs_error": _finite(case.max_abs_error),
                        "reference_max_abs_error": _finite(case.reference_max_abs_error),
                        "limit": case.limit,
                        "rms_error": _finite(case.rms_error),
                        "reference_rms_error": _finite(case.reference_rms_error),
                        "rms_limit": _finite(case.rms_limit),
                        "inputs": case.inputs,
                        "ok": case.ok,
                    }
                    for case in verdict.cases
                ],
            }
            for key, verdict in report.verdicts.items()
        ],
        "failures": [
            {"variant": f.subject, "outcome": str(f.outcome), "reason": f.reason}
            for f in report.failures
        ],
        "rejected": [
            {"variant": variant.key, "constraint": why.constraint, "reason": why.reason}
            for variant, why in report.rejected
        ],
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


def _finite(value: float | None) -> float | str | None:
    """JSON has no NaN and no infinity: these are their names."""
    return value if value is None or abs(value) < float("inf") else str(value)


def _by_correctness(verdicts: Mapping[str, Verdict]) -> list[tuple[str, Verdict]]:
    return sorted(verdicts.items(), key=lambda item: (item[1].correct, item[0]))


def _name(subject: str) -> str:
    """A variant's short form; what the key says beyond it stays."""
    return Variant.from_key(subject).config
