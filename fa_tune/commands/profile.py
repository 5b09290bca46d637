"""`fa-tune profile`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import click

from fa_tune.commands.shared.documents import Row, Seconds, Stages, filled, write_document
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import option
from fa_tune.commands.shared.output import say, tell, write_rows_csv
from fa_tune.commands.shared.parameters import STDOUT, output_file
from fa_tune.commands.shared.progress import PlainProgress, watching
from fa_tune.commands.views.row_table import FITTED_LIMIT, show_rows
from fa_tune.commands.views.verdicts import check_users
from fa_tune.core import units
from fa_tune.core.model import Attempt, Measurement, Outcome, Quantity, is_reference
from fa_tune.core.options import SearchOptions
from fa_tune.core.paths import profiles_dir
from fa_tune.core.workload import Workload
from fa_tune.libraries import label_of
from fa_tune.profile import profile_json
from fa_tune.profile.ncu.metrics import METRICS, RANK, label
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import row_objects
from fa_tune.report.wrap import terminal_width
from fa_tune.store.table.from_attempts import rows_from_attempts
from fa_tune.tune import single
from fa_tune.tune.results import ProfileResult
from fa_tune.tune.session import ready_workers

UNLIMITED = 100_000  # columns
METRIC = "metric"
NOT_COLLECTED = "–"  # never a zero


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One kernel on one workload, with its counters by ncu's names, in base units."""

    subject: str
    workload: str
    outcome: Outcome
    reason: str | None
    samples_s: tuple[Seconds, ...]
    counters: Mapping[str, Quantity]

    @classmethod
    def of(cls, attempt: Attempt) -> Measured:
        found = attempt.measurement or Measurement(attempt.subject, attempt.workload, "", (), {})
        return filled(cls, attempt, found, reason=attempt.reason or None)


@dataclass(frozen=True, kw_only=True)
class Profile:
    """`fa-tune profile --json`"""

    schema: Literal["fa-tune-profile-1"]
    whose: str
    written_at: str | None = None  # ISO 8601; older documents do not say
    export: Path | None
    warnings: tuple[str, ...]
    rows: tuple[Row, ...]
    measurements: tuple[Measured, ...]
    stages_s: Stages


@click.command("profile", cls=GroupedCommand)
@click.argument("configs", nargs=-1, required=True, metavar="CONFIG…")
@option(
    "--export",
    type=output_file(stdout=False),
    metavar="FILE.ncu-rep",
    help="Keep ncu's report, for the Nsight Compute program.",
)
@shared_options(
    *("seq_lens", "seq_lens_kv", "batches", "heads", "kv_heads", "masks", "common"),
    *("metrics", "profiler", "runs", "references", "users", "clock_control", "inputs", "seed"),
    *("csv", "as_json", "limit", "wide"),
    *("arch", "jobs", "compile_timeout_s", "device", "ncu", "recordings", "cache_dir", "quiet"),
    limit=f"{FITTED_LIMIT} beside the references; 20 with --wide",
)
def command(
    configs: tuple[str, ...],
    options: SearchOptions,
    export: Path | None,
    output: Output,
    quiet: bool,
) -> None:
    """Measure one config or several beside the reference kernels.

    A CONFIG is a short form, quoted for the shell; it states its own element type and head
    dimension. `--metrics explain` adds a table of counters, one column per kernel, that shows what
    the time is spent on. Without a GPU, recorded measurements are shown.

    \b
    Examples:
      fa-tune profile \\
          "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
      fa-tune profile --metrics explain --export best.ncu-rep \\
          "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles"
    """
    profiler = options.measure.profiler
    if export is not None and profiler in ("events", "replay"):
        raise click.UsageError(f"--export keeps ncu's report; {profiler} writes none")
    if export is not None and export.suffix not in (".ncu-rep", ".ncu-repz"):
        raise click.UsageError("--export needs a file name that ends in .ncu-rep")

    options = replace(options, kernels="")
    with watching(quiet) as progress, ready_workers(options.machine):
        result = single.profile(configs, options, progress, export=export)
    if options.measure.metrics != "rank" and not explains(result.attempts):
        result = _with_recorded_counters(result, options.machine.recordings or profiles_dir())
    progress.tell(result.source, result.warnings)

    rows = rows_from_attempts(result.attempts, result.resources)
    write_rows_csv(rows, output.csv)
    if output.as_json:
        write_document(
            *(Profile, result),
            whose=result.source,
            written_at=datetime.now(UTC).isoformat(timespec="seconds"),
            rows=row_objects(rows),
            measurements=[Measured.of(attempt) for attempt in result.attempts],
            stages_s=progress.stages_s(),
        )
    elif output.csv != STDOUT:
        legend = show_rows(rows, output.limit, wide=output.wide, summed_up=False)
        if options.measure.metrics != "rank":
            _show_counters(result, progress, legend, UNLIMITED if output.wide else terminal_width())
        if result.export is not None:
            say(f"Report kept in {result.export}.")
        tell(f"Measurements: {result.source}.", wide=output.wide)
    if not output.is_table:
        progress.note(f"Measurements: {result.source}.")
    if export is not None and result.export is None:
        progress.warn(f"no report was written to {export}")
    check_users(result.attempts)


def _with_recorded_counters(result: ProfileResult, folder: Path) -> ProfileResult:
    """The result with counters of the same kernels on the same workloads that were recorded apart
    from their times."""
    counters: dict[tuple[str, str], Mapping[str, Quantity]] = {}
    paths = []
    wanted = {(a.subject, a.workload) for a in result.attempts}
    for path in profile_json.beside_recordings(folder):
        found = {(m.subject, m.workload): m.counters for m in profile_json.load(path)}
        if found.keys() & wanted:
            counters |= found
            paths.append(f"{path.parent.name}/{path.name}")
    if not paths:
        return result
    attempts = tuple(
        replace(a, measurement=replace(a.measurement, counters=counters[key]))
        if a.measurement and (key := (a.subject, a.workload)) in counters
        else a
        for a in result.attempts
    )
    source = f"{result.source}; counters from {', '.join(paths)}"
    return replace(result, attempts=attempts, source=source)


def _show_counters(
    result: ProfileResult, progress: PlainProgress, legend: Legend, width: int
) -> None:
    if not explains(result.attempts):
        progress.warn("these measurements hold no counters that explain, only those that rank")
    known = len(legend)
    texts = counter_tables(result.attempts, legend, width)
    for text in (*texts, "\n".join(legend.lines(width, after=known))):
        if text:
            say()
            say(text)


def explains(attempts: Sequence[Attempt]) -> bool:
    """Whether any counter goes beyond those that rank kernels."""
    found = {name for a in attempts if a.measurement for name in a.measurement.counters}
    return bool(found - set(RANK))


def counter_tables(attempts: Sequence[Attempt], legend: Legend, width: int) -> list[str]:
    """One table per workload with configs by number, as many columns beside one another as fit;
    none where nothing was counted."""
    by_workload: dict[str, list[Measurement]] = {}
    for attempt in attempts:
        if attempt.measurement is not None and attempt.measurement.counters:
            by_workload.setdefault(attempt.workload, []).append(attempt.measurement)
    texts = []
    for key, measurements in by_workload.items():
        w = Workload.from_key(key)
        title = f"Counters at seq_len {w.seq_len_q}, d_head {w.d_head}, {w.dtype.name}"
        texts.append("\n".join([title, *_fitted(measurements, legend, width)]))
    return texts


def _fitted(measurements: Sequence[Measurement], legend: Legend, width: int) -> list[str]:
    columns = _columns(measurements, legend)
    lines: list[str] = []
    while columns[1:]:
        blocks = [_beside(columns[:end], width) for end in range(2, len(columns) + 1)]
        fitting = [block for block in blocks if max(map(len, block)) <= width]
        block = fitting[-1] if fitting else blocks[0]
        lines += ([""] if lines else []) + block
        columns = [columns[0], *columns[2 + blocks.index(block) :]]
    return lines


def _beside(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    headings, *rows = zip(*columns, strict=True)
    return fitted(headings, rows, width, left=(METRIC,))


def _columns(measurements: Sequence[Measurement], legend: Legend) -> list[list[str]]:
    """The metrics' names, known ones in their usual order before others, then each kernel's."""
    every = {name for m in measurements for name in m.counters}
    ordered = [m for m in METRICS if m in every] + sorted(every - METRICS.keys())
    texts = [label(metric) for metric in ordered]
    # Two identifiers may have one label: then the identifier tells them apart.
    named = [m if texts.count(text) > 1 else text for m, text in zip(ordered, texts, strict=True)]
    columns = [[METRIC, *named]]
    for m in measurements:
        name = label_of(m.subject) if is_reference(m.subject) else legend.number(m.subject)
        cells = (
            units.format_quantity(m.counters[c]) if c in m.counters else NOT_COLLECTED
            for c in ordered
        )
        columns.append([name, *cells])
    return columns
