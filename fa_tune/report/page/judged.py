"""The report about a judged target as a page: one file that makes no request."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from fa_tune.core import codec
from fa_tune.core.files import save_file
from fa_tune.core.judged import JudgedCase, JudgeReport, Timing
from fa_tune.core.units import format_seconds
from fa_tune.report.page.render import filled

Cells = tuple[str, ...]
LIMITS = (
    "The target's process is no sandbox: it runs with the rights of whoever judges it. A program "
    "that attacks the judge's processes, its files or the driver is not defended against.",
    "Inside the target's process torch's profiler says what ran. A target that behaves otherwise "
    "while it is watched, or that changes the driver's own code, can hide a library; its results "
    "and the judge's own clock still count.",
    "The digest shows that a report was changed by accident. It is no signature: whoever writes a "
    "report can compute it. Judging again shows whether it holds.",
    "Files that the target imports are not in its digests.",
)


def write_judged(path: Path, report: JudgeReport) -> None:
    """Write the page of a report to a file; raises StorageError."""
    save_file(path, judged_page(report).encode())


def judged_page(report: JudgeReport) -> str:
    """The page as HTML."""
    return filled(
        "judged.html",
        codec.dump(report),
        report=report,
        verdict="accepted" if report.accepted else "refused",
        facts=_facts(report),
        tables=_tables(report),
        limits=LIMITS,
    )


def _facts(report: JudgeReport) -> dict[str, Any]:
    words = {True: "yes", False: "no", None: "not tried"}
    found = {
        "claims to be": report.claim,
        "equal inputs, equal bits": words[report.deterministic],
        "passes NaN on": words[report.passes_nan_on],
        "judged on": report.device,
        "driver": report.driver,
        "date": report.taken_at,
        "seed": report.seed,
        "versions": ", ".join(f"{name} {version}" for name, version in report.versions.items()),
        "files": ", ".join(f"{name} {digest}" for name, digest in report.files.items()),
        "fa-tune": f"{report.tool['version']}, {report.tool['sha256']}",
    }
    return {name: value for name, value in found.items() if value != ""}


def _tables(report: JudgeReport) -> list[tuple[str, tuple[str, ...], list[Cells]]]:
    """Title, headings and rows of those that have any."""
    times = ("workload", "kernel", "median", "of the target's", "samples")
    cases = ("problem", "inputs", "shape", "calls", "error of its limit", "verdict")
    found: list[tuple[str, Cells, list[Cells]]] = [
        ("How fast is it?", times, [row for t in report.timings for row in _timing(t)]),
        ("What was it tried on?", cases, [_case(case) for case in report.cases]),
        ("What did torch run in it?", ("operator or kernel",), [(name,) for name in report.ran]),
    ]
    return [(title, headings, rows) for title, headings, rows in found if rows]


def _timing(timing: Timing) -> list[Cells]:
    own = statistics.median(timing.samples_s)
    kinds = {
        "the target": timing.samples_s,
        "the target, contents again": timing.again_s,
        **timing.references,
    }
    rows: list[Cells] = [
        (timing.workload, name, format_seconds(median), f"{median / own:.3f}", str(len(samples)))
        for name, samples in kinds.items()
        if (median := statistics.median(samples)) and own
    ]
    if timing.least_s is not None:
        least = (format_seconds(timing.least_s), f"{timing.least_s / own:.3f}", "")
        rows.append((timing.workload, "the GPU's peak rates", *least))
    return rows


def _case(case: JudgedCase) -> Cells:
    shape = "drawn" if case.drawn else "known"
    if case.error is None:
        return (case.workload, case.inputs, shape, str(case.calls), "", case.no_call)
    right = "right" if case.error.ok else "wrong"
    share = f"{100 * case.error.share:.0f} %"
    return (case.workload, case.inputs, shape, str(case.calls), share, right)
