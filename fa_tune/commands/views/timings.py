"""Times of kernels as bench and run show them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fa_tune.commands.shared.documents import Count, Seconds, filled, write_document
from fa_tune.commands.shared.fitted_table import subject_of
from fa_tune.commands.shared.option_groups import Output
from fa_tune.commands.shared.output import say, tell, write_rows_csv
from fa_tune.commands.views.row_table import gigabytes
from fa_tune.core import units
from fa_tune.core.errors import one_line
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.workload import Workload
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import DEFAULT_LIMIT, text_table
from fa_tune.report.wrap import terminal_width, wrapped
from fa_tune.store.table.from_attempts import rows_from_attempts, workload_text
from fa_tune.tune.results import ProfileResult

MILLISECOND_S = units.to_base(1, "ms").value
MICROSECOND_S = units.to_base(1, "us").value
_TIMES = ("mean", "median", "min", "max", "sd")
_RATES = ("n", "TFLOP/s", "GB/s", "launch (µs)")


@dataclass(frozen=True, kw_only=True)
class Timing:
    """One kernel timed by events; times are None where nothing was measured."""

    kernel: str
    reference: bool
    workload: str
    inputs: str | None
    method: str | None
    outcome: Outcome
    reason: str | None
    mean_s: Seconds | None
    median_s: Seconds | None
    min_s: Seconds | None
    max_s: Seconds | None
    sd_s: Seconds | None  # of two samples or more
    n: Count
    tflops: float | None
    bytes_per_s: float | None
    host_launch_s: Seconds | None  # what a launch takes the process that makes it
    samples_s: tuple[Seconds, ...]

    @classmethod
    def of(cls, attempt: Attempt) -> Timing:
        (row,) = rows_from_attempts([attempt])
        samples, found = row.samples_s or (), attempt.measurement
        return filled(
            *(cls, row),
            reference=row.is_reference,
            workload=attempt.workload,
            inputs=row.inputs or None,
            method=row.method or None,
            reason=row.reason or None,
            mean_s=row.duration_s,
            sd_s=statistics.stdev(samples) if len(samples) > 1 else None,
            n=row.n or 0,
            tflops=row.matmul_tflops,
            host_launch_s=found.host_launch_s if found and samples else None,
            samples_s=samples,
        )

    @property
    def problem(self) -> tuple[str, str]:
        """The outcome in words, and the reason."""
        return self.outcome.replace("_", " "), self.reason or ""

    def figures(self) -> list[str]:
        """The cells after the kernel's name; what is missing stays empty."""
        times = (self.mean_s, self.median_s, self.min_s, self.max_s, self.sd_s)
        return [
            *("" if t is None else units.format_fixed(t / MILLISECOND_S, 4) for t in times),
            str(self.n or ""),
            "" if self.tflops is None else f"{self.tflops:.1f}",
            gigabytes(self.bytes_per_s),
            "" if self.host_launch_s is None else f"{self.host_launch_s / MICROSECOND_S:.0f}",
        ]


@dataclass(frozen=True, kw_only=True)
class Timed:
    """The part of a document that says how long kernels took."""

    whose: str
    timings: tuple[Timing, ...]


@dataclass(frozen=True, kw_only=True)
class Bench(Timed):
    """`fa-tune bench --json`"""

    schema: Literal["fa-tune-bench-1"]


def timed(result: ProfileResult) -> dict[str, Any]:
    """The fields of `Timed`."""
    return {"whose": result.source, "timings": [Timing.of(attempt) for attempt in result.attempts]}


def show_timings(result: ProfileResult, output: Output) -> None:
    """The result on standard output, as a table per workload or for machines."""
    limit = output.limit
    write_rows_csv(rows_from_attempts(result.attempts, result.resources), output.csv)
    if output.as_json:
        write_document(Bench, **timed(result))
    elif output.is_table:
        legend = Legend()
        timings = [Timing.of(attempt) for attempt in result.attempts]
        for (workload, inputs), members in _grouped(timings).items():
            title = workload_text(Workload.from_key(workload))
            title += f", {inputs} inputs" if inputs else ""
            methods = ", ".join(dict.fromkeys(t.method for t in members if t.method))
            tell(f"{title}; {methods}" if methods else title, wide=output.wide)
            shown = sorted(members, key=_place)[: DEFAULT_LIMIT if limit is None else limit]
            say(_in_full(shown) if output.wide else _fitted(shown, legend))
            if len(members) > len(shown):
                say(f"{'' if output.wide else '  '}… {len(members) - len(shown)} more")
            say()
        if not output.wide and (lines := legend.lines(terminal_width())):
            say("\n".join([*lines, ""]))
        tell(f"Measurements: {result.source}.", wide=output.wide)


def _grouped(timings: Sequence[Timing]) -> dict[tuple[str, str], list[Timing]]:
    """Timings by workload and inputs.  Without a time, one belongs to the inputs that all others
    have, or to none."""
    known = {t.inputs for t in timings if t.inputs}
    shared = next(iter(known)) if len(known) == 1 else ""
    found: dict[tuple[str, str], list[Timing]] = {}
    for timing in timings:
        key = (timing.workload, timing.inputs or shared)
        found.setdefault(key, []).append(timing)
    return found


def _place(timing: Timing) -> tuple[bool, bool, float, str]:
    """References first, then ours by median; what has no time last."""
    median_s = timing.median_s
    return median_s is None, not timing.reference, median_s or 0.0, timing.kernel


def _in_full(timings: Sequence[Timing]) -> str:
    headings = ["Kernel Name", *(f"{n} (ms)" for n in _TIMES), *_RATES]
    rows = [[t.kernel, *t.figures()] for t in timings]
    if any(t.outcome is not Outcome.OK for t in timings):
        headings += ["outcome", "reason"]
        rows = [[*cells, *t.problem] for cells, t in zip(rows, timings, strict=True)]
    return text_table(headings, rows, {"Kernel Name", "outcome", "reason"})


def _fitted(timings: Sequence[Timing], legend: Legend) -> str:
    """Configs by number and times in milliseconds; what went wrong under the table."""
    headings, width = ("ms", *_TIMES, *_RATES), terminal_width()
    names = [t.kernel if t.reference else legend.number(subject_of(t.kernel)) for t in timings]
    rows = [[name, *t.figures()] for name, t in zip(names, timings, strict=True)]
    why = [
        wrapped(": ".join((name, *map(one_line, t.problem))), width)
        for name, t in zip(names, timings, strict=True)
        if t.outcome is not Outcome.OK
    ]
    spare = ("n", "sd", "max", "min", "launch (µs)")
    return "\n".join([*fitted(headings, rows, width, left=("ms",), spare=spare), *why])
