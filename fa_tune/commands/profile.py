"""`fa-tune profile`."""

from __future__ import annotations

from collections.abc import Mapping
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
from fa_tune.commands.views.counters import counter_tables, explains
from fa_tune.commands.views.row_table import FITTED_LIMIT, show_rows
from fa_tune.commands.views.verdicts import check_users
from fa_tune.core.model import Attempt, Measurement, Outcome, Quantity
from fa_tune.core.options import SearchOptions
from fa_tune.core.paths import profiles_dir
from fa_tune.profile import profile_json
from fa_tune.report.fitted import Legend
from fa_tune.report.formats import row_objects
from fa_tune.report.wrap import terminal_width
from fa_tune.store.table.from_attempts import rows_from_attempts
from fa_tune.tune import single
from fa_tune.tune.results import ProfileResult
from fa_tune.tune.session import ready_workers

UNLIMITED = 100_000  # columns


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
