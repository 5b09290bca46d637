"""Times of kernels as bench and run show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_tune.commands.shared.output import one_line, say, text_table, write_json, write_rows_csv
from fa_tune.commands.shared.parameters import STDOUT
from fa_tune.commands.views.row_table import gigabytes
from fa_tune.core import units
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.workload import Workload
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import DEFAULT_LIMIT
from fa_tune.report.wrap import terminal_width, wrapped
from fa_tune.store.table.from_attempts import rows_from_attempts, workload_text
from fa_tune.tune.results import ProfileResult

SCHEMA = "fa-tune-bench-1"
MILLISECOND_S = units.to_base(1, "ms").value
MICROSECOND_S = units.to_base(1, "us").value
_TIMES = ("mean", "median", "min", "max", "sd")
_RATES = ("n", "TFLOP/s", "GB/s", "launch (µs)")


@dataclass(frozen=True)
class Timing:
    """One kernel's times in seconds, None where nothing was measured; `sd_s` needs two
    samples.  `tflops` counts 4·s²·d over the median; `gigabytes` are those of a second, as text;
    `host_s` is what a launch takes the process that makes it; `inputs` what it was measured on,
    `method` how."""

    kernel: str
    subject: str
    is_reference: bool
    workload: str
    outcome: Outcome
    reason: str
    samples_s: tuple[float, ...] = ()
    mean_s: float | None = None
    median_s: float | None = None
    min_s: float | None = None
    max_s: float | None = None
    sd_s: float | None = None
    tflops: float | None = None
    gigabytes: str = ""
    bytes_per_s: float | None = None
    host_s: float | None = None
    inputs: str = ""
    method: str = ""

    @classmethod
    def of(cls, attempt: Attempt) -> Timing:
        """The timing of an attempt; a failed one has no times."""
        (row,) = rows_from_attempts([attempt])
        facts = (
            row.kernel,
            attempt.subject,
            row.is_reference,
            attempt.workload,
            attempt.outcome,
            attempt.reason,
        )
        if not row.samples_s:
            return cls(*facts)
        return cls(
            *facts,
            samples_s=row.samples_s,
            mean_s=row.duration_s,
            median_s=row.median_s,
            min_s=row.min_s,
            max_s=row.max_s,
            sd_s=statistics.stdev(row.samples_s) if len(row.samples_s) > 1 else None,
            tflops=row.matmul_tflops,
            gigabytes=gigabytes(row),
            bytes_per_s=row.bytes_per_s,
            host_s=attempt.measurement.host_launch_s if attempt.measurement else None,
            inputs=row.inputs,
            method=row.method,
        )

    def cells(self) -> list[str]:
        """The table's cells; what is missing stays empty."""
        return [self.kernel, *self.figures()]

    def figures(self) -> list[str]:
        """The cells after the kernel's name."""
        times = (getattr(self, f"{name}_s") for name in _TIMES)
        return [
            *("" if t is None else units.format_fixed(t / MILLISECOND_S, 4) for t in times),
            str(len(self.samples_s)) if self.samples_s else "",
            "" if self.tflops is None else f"{self.tflops:.1f}",
            self.gigabytes,
            "" if self.host_s is None else f"{self.host_s / MICROSECOND_S:.0f}",
        ]


def show_timings(
    result: ProfileResult, *, csv: Path | None, as_json: bool, limit: int | None, wide: bool
) -> None:
    """The result on standard output, as a table per workload or for machines."""
    timings = [Timing.of(attempt) for attempt in result.attempts]
    if csv is not None:
        write_rows_csv(rows_from_attempts(result.attempts, result.resources), csv)
    if as_json:
        write_json(document(result))
    elif csv != STDOUT:
        width, legend = None if wide else terminal_width(), Legend()
        for (workload, inputs), members in _grouped(timings).items():
            say(_table(workload, inputs, members, limit, legend, width))
            say()
        source = f"Measurements: {result.source}."
        if width is not None:
            if lines := legend.lines(width):
                say("\n".join([*lines, ""]))
            source = wrapped(source, width)
        say(source)


def document(result: ProfileResult) -> dict[str, Any]:
    """The result as JSON, times in seconds, a missing one null."""
    return {
        "schema": SCHEMA,
        "whose": result.source,
        "timings": [_object(Timing.of(attempt)) for attempt in result.attempts],
    }


def _object(timing: Timing) -> dict[str, Any]:
    return {
        "kernel": timing.kernel,
        "reference": timing.is_reference,
        "workload": timing.workload,
        "inputs": timing.inputs or None,
        "method": timing.method or None,
        "outcome": str(timing.outcome),
        "reason": timing.reason or None,
        **{f"{name}_s": getattr(timing, f"{name}_s") for name in _TIMES},
        "n": len(timing.samples_s),
        "tflops": timing.tflops,
        "bytes_per_s": timing.bytes_per_s,
        "host_launch_s": timing.host_s,
        "samples_s": list(timing.samples_s),
    }


def _grouped(timings: Sequence[Timing]) -> dict[tuple[str, str], list[Timing]]:
    """Timings by workload and inputs.  Without a time, one belongs to the inputs that all others
    have, or to none."""
    known = {t.inputs for t in timings if t.inputs}
    shared = next(iter(known)) if len(known) == 1 else ""
    found: dict[tuple[str, str], list[Timing]] = {}
    for timing in timings:
        found.setdefault((timing.workload, timing.inputs or shared), []).append(timing)
    return found


def _table(
    workload: str,
    inputs: str,
    timings: Sequence[Timing],
    limit: int | None,
    legend: Legend,
    width: int | None,
) -> str:
    """References first, then ours by median; what has no time last, with its reason."""
    ordered = sorted(
        timings,
        key=lambda t: (t.median_s is None, not t.is_reference, t.median_s or 0.0, t.kernel),
    )
    shown = ordered[: DEFAULT_LIMIT if limit is None else limit]
    title = workload_text(Workload.from_key(workload))
    title += f", {inputs} inputs" if inputs else ""
    methods = ", ".join(dict.fromkeys(t.method for t in timings if t.method))
    title += f"; {methods}" if methods else ""
    rest = f"… {len(ordered) - len(shown)} more" if len(ordered) > len(shown) else ""
    if width is not None:
        title, rest = wrapped(title, width), f"  {rest}" if rest else ""
    table = _in_full(shown) if width is None else _fitted(shown, legend, width)
    return "\n".join(part for part in (title, table, rest) if part)


def _in_full(timings: Sequence[Timing]) -> str:
    headings = ["Kernel Name", *(f"{n} (ms)" for n in _TIMES), *_RATES]
    rows = [t.cells() for t in timings]
    if any(t.outcome is not Outcome.OK for t in timings):
        headings += ["outcome", "reason"]
        rows = [
            [*cells, t.outcome.replace("_", " "), t.reason]
            for cells, t in zip(rows, timings, strict=True)
        ]
    return text_table(headings, rows, {"Kernel Name", "outcome", "reason"})


def _fitted(timings: Sequence[Timing], legend: Legend, width: int) -> str:
    """Configs by number and times in milliseconds; what went wrong under the table."""
    headings = ("ms", *_TIMES, *_RATES)
    names = [t.kernel if t.is_reference else legend.number(t.subject) for t in timings]
    rows = [[name, *t.figures()] for name, t in zip(names, timings, strict=True)]
    why = [
        wrapped(f"{name}: {t.outcome.replace('_', ' ')}: {one_line(t.reason)}", width)
        for name, t in zip(names, timings, strict=True)
        if t.outcome is not Outcome.OK
    ]
    spare = ("n", "sd", "max", "min", "launch (µs)")
    return "\n".join([*fitted(headings, rows, width, left=("ms",), spare=spare), *why])
