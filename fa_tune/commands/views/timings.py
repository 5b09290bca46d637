"""Times of kernels as bench and run show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fa_tune.commands.shared.option_groups import Output
from fa_tune.commands.shared.output import one_line, say, text_table, write_json, write_rows_csv
from fa_tune.commands.views.row_table import gigabytes
from fa_tune.core import units
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.workload import Workload
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import DEFAULT_LIMIT
from fa_tune.report.wrap import terminal_width, wrapped
from fa_tune.store.table.from_attempts import rows_from_attempts, workload_text
from fa_tune.store.table.rows import Row
from fa_tune.tune.results import ProfileResult

SCHEMA = "fa-tune-bench-1"
MILLISECOND_S = units.to_base(1, "ms").value
MICROSECOND_S = units.to_base(1, "us").value
_TIMES = ("mean", "median", "min", "max", "sd")
_RATES = ("n", "TFLOP/s", "GB/s", "launch (µs)")


@dataclass(frozen=True)
class Timing:
    """One kernel's attempt and what it came to as a row, whose times are None where nothing was
    measured."""

    attempt: Attempt
    row: Row

    @classmethod
    def of(cls, attempt: Attempt) -> Timing:
        """The timing of an attempt; a failed one has no times."""
        (row,) = rows_from_attempts([attempt])
        return cls(attempt, row)

    @property
    def times_s(self) -> dict[str, float | None]:
        """By name, in seconds; the deviation needs two samples."""
        row, samples = self.row, self.row.samples_s or ()
        sd = statistics.stdev(samples) if len(samples) > 1 else None
        times = (row.duration_s, row.median_s, row.min_s, row.max_s, sd)
        return dict(zip(_TIMES, times, strict=True))

    @property
    def host_s(self) -> float | None:
        """What a launch takes the process that makes it."""
        measured = self.attempt.measurement if self.row.samples_s else None
        return measured.host_launch_s if measured else None

    @property
    def problem(self) -> tuple[str, str]:
        """The outcome in words, and the reason."""
        return self.row.outcome.replace("_", " "), self.row.reason

    def figures(self) -> list[str]:
        """The cells after the kernel's name; what is missing stays empty."""
        tflops = self.row.matmul_tflops
        return [
            *(
                "" if t is None else units.format_fixed(t / MILLISECOND_S, 4)
                for t in self.times_s.values()
            ),
            str(self.row.n or ""),
            "" if tflops is None else f"{tflops:.1f}",
            gigabytes(self.row),
            "" if self.host_s is None else f"{self.host_s / MICROSECOND_S:.0f}",
        ]


def show_timings(result: ProfileResult, output: Output) -> None:
    """The result on standard output, as a table per workload or for machines."""
    write_rows_csv(rows_from_attempts(result.attempts, result.resources), output.csv)
    if output.as_json:
        write_json(document(result))
    elif output.is_table:
        width, legend = None if output.wide else terminal_width(), Legend()
        timings = [Timing.of(attempt) for attempt in result.attempts]
        for (workload, inputs), members in _grouped(timings).items():
            say(_table(workload, inputs, members, output.limit, legend, width))
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
    row = timing.row
    return {
        "kernel": row.kernel,
        "reference": row.is_reference,
        "workload": timing.attempt.workload,
        "inputs": row.inputs or None,
        "method": row.method or None,
        "outcome": str(row.outcome),
        "reason": row.reason or None,
        **{f"{name}_s": value for name, value in timing.times_s.items()},
        "n": row.n or 0,
        "tflops": row.matmul_tflops,
        "bytes_per_s": row.bytes_per_s,
        "host_launch_s": timing.host_s,
        "samples_s": list(row.samples_s or ()),
    }


def _grouped(timings: Sequence[Timing]) -> dict[tuple[str, str], list[Timing]]:
    """Timings by workload and inputs.  Without a time, one belongs to the inputs that all others
    have, or to none."""
    known = {t.row.inputs for t in timings if t.row.inputs}
    shared = next(iter(known)) if len(known) == 1 else ""
    found: dict[tuple[str, str], list[Timing]] = {}
    for timing in timings:
        key = (timing.attempt.workload, timing.row.inputs or shared)
        found.setdefault(key, []).append(timing)
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
    ordered = sorted(timings, key=_place)
    shown = ordered[: DEFAULT_LIMIT if limit is None else limit]
    title = workload_text(Workload.from_key(workload))
    title += f", {inputs} inputs" if inputs else ""
    methods = ", ".join(dict.fromkeys(t.row.method for t in timings if t.row.method))
    title += f"; {methods}" if methods else ""
    rest = f"… {len(ordered) - len(shown)} more" if len(ordered) > len(shown) else ""
    if width is not None:
        title, rest = wrapped(title, width), f"  {rest}" if rest else ""
    table = _in_full(shown) if width is None else _fitted(shown, legend, width)
    return "\n".join(part for part in (title, table, rest) if part)


def _place(timing: Timing) -> tuple[bool, bool, float, str]:
    row = timing.row
    return row.median_s is None, not row.is_reference, row.median_s or 0.0, row.kernel


def _in_full(timings: Sequence[Timing]) -> str:
    headings = ["Kernel Name", *(f"{n} (ms)" for n in _TIMES), *_RATES]
    rows = [[t.row.kernel, *t.figures()] for t in timings]
    if any(t.row.outcome is not Outcome.OK for t in timings):
        headings += ["outcome", "reason"]
        rows = [[*cells, *t.problem] for cells, t in zip(rows, timings, strict=True)]
    return text_table(headings, rows, {"Kernel Name", "outcome", "reason"})


def _fitted(timings: Sequence[Timing], legend: Legend, width: int) -> str:
    """Configs by number and times in milliseconds; what went wrong under the table."""
    headings = ("ms", *_TIMES, *_RATES)
    names = [
        t.row.kernel if t.row.is_reference else legend.number(t.attempt.subject) for t in timings
    ]
    rows = [[name, *t.figures()] for name, t in zip(names, timings, strict=True)]
    why = [
        wrapped(": ".join((name, *map(one_line, t.problem))), width)
        for name, t in zip(names, timings, strict=True)
        if t.row.outcome is not Outcome.OK
    ]
    spare = ("n", "sd", "max", "min", "launch (µs)")
    return "\n".join([*fitted(headings, rows, width, left=("ms",), spare=spare), *why])
