"""`fa-tune search`."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fa_tune.commands.shared.options import (
    axis_option,
    family_option,
    folder,
    kernels_option,
    machine_options,
    measure_options,
    option,
    registry_option,
    workload_options,
)
from fa_tune.commands.shared.output_options import (
    csv_option,
    json_option,
    limit_option,
    quiet_option,
    refuse_both,
)
from fa_tune.commands.shared.parameters import STDOUT, BudgetType
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Outcome
from fa_tune.core.options import MachineOptions, MeasureOptions, SearchOptions, WorkloadOptions
from fa_tune.search.strategies import DEFAULT, STRATEGIES, USES_EXPERIENCE
from fa_tune.search.strategies.budget import Budget

if TYPE_CHECKING:
    from fa_tune.families.base import Config
    from fa_tune.store.table.rows import Row
    from fa_tune.tune.results import SearchResult, WorkloadResult

SCHEMA = "fa-tune-search-1"


@click.command("search", short_help="Find the fastest config per workload and keep it.")
@workload_options()
@kernels_option()
@family_option()
@axis_option()
@option(
    "--strategy",
    "strategy",
    type=click.Choice(tuple(STRATEGIES)),
    default=DEFAULT,
    metavar="NAME",
    help="What to measure, if not everything: "
    + "; ".join(f"{name}: {what}" for name, (_, what) in STRATEGIES.items())
    + ".",
)
@option(
    "--budget",
    "budget",
    type=BudgetType(),
    metavar="N|Ns|N,Ns",
    show_default="no limit",
    help="For each workload, so many measurements at most (60), seconds of measuring (300s), or "
    "both (60,300s); the final among the fastest comes on top.",
)
@option(
    "--audit",
    "audit",
    type=click.IntRange(0, 100_000),
    default=0,
    metavar="N",
    help="Also measure N random configs of those that the strategy skipped, and say how much "
    "faster the fastest of them is.",
)
@option(
    "--learn-from",
    "learn_from",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    show_default=False,
    help="Recorded spaces (FILE.space.csv.gz, or folders with some) of this GPU model: learned "
    "begins with what they say of such configs on other workloads, and unlearns it where this "
    "one differs. May be given several times.",
)
@measure_options("profiler", "runs", "references", "clock_control", "seed")
@registry_option()
@option(
    "--resume/--fresh",
    "resume",
    default=True,
    help="Take finished measurements from the journal, or measure everything again.",
)
@option(
    "--why-stale",
    "stale",
    is_flag=True,
    show_default=False,
    help="Measure nothing: say which variants the journal has no valid attempt for, and which "
    "condition has changed since there was one.",
)
@option(
    "--confirm/--no-confirm",
    "confirm",
    default=True,
    help="On a GPU, compare each choice with the default once more, in a process of its own and "
    "as a program runs it (about a second each); where it gains nothing, the default is kept.",
)
@folder("--record", "record", help="Keep the measurements as a recording for replay in DIR.")
@csv_option()
@json_option()
@limit_option()
@machine_options(
    *("arch", "jobs", "compile_timeout_s", "device", "devices", "ray", "ncu", "recordings"),
    "cache_dir",
)
@quiet_option()
def command(
    workloads: WorkloadOptions,
    kernels: str,
    names: tuple[str, ...],
    axes: tuple[str, ...],
    strategy: str,
    budget: Budget | None,
    audit: int,
    learn_from: tuple[Path, ...],
    measure: MeasureOptions,
    machine: MachineOptions,
    registry: Path | None,
    resume: bool,
    stale: bool,
    confirm: bool,
    record: Path | None,
    csv: Path | None,
    as_json: bool,
    limit: int | None,
    quiet: bool,
) -> None:
    """Find the fastest kernel for each workload and keep it in the registry.

    Compiles every config of a set, checks its result against a reference, measures what is
    right, and chooses. There is one workload per sequence length, head dimension and element
    type. Standard output gets a table and a summary for each; `*` marks the fastest config.

    The set is taken from every family of kernels that runs on the device, or from those that
    --family names. Beside it compete what the registry holds, each family's default config,
    and the default of the device, which is that of the best family for it.

    With --strategy or --budget not everything is measured: a strategy proposes configs, seeing
    what became of those before, and the fastest meet in a final beside the defaults.

    Interrupted, a search keeps what it has finished: the same command goes on from there.
    Without a GPU it chooses among recorded measurements, and says whose they are.

    \b
    Examples:
      fa-tune search --seq-lens 1024,4096 --d-head 128
      fa-tune search --dtype fp16 --kernels prog --csv ladder.csv
      fa-tune search --dtype fp16 --kernels wide --seq-lens 4096
      fa-tune search --strategy learned --budget 24 --audit 8 --axis n_warps=4,8
      fa-tune search --kernels fast --why-stale
    """
    refuse_both(csv, as_json)
    if record is not None and measure.profiler == "replay":
        raise click.UsageError("--record keeps new measurements; --profiler replay makes none")

    from fa_tune.tune import flow, session

    options = SearchOptions(
        workloads=workloads,
        kernels=kernels,
        families=names,
        measure=measure,
        machine=machine,
        registry=registry,
        csv=None if csv == STDOUT else csv,
        record=record,
        resume=resume,
        axes=axes,
        strategy=strategy,
        measurements=budget.measurements if budget else None,
        seconds=budget.seconds if budget else None,
        audit=audit,
        confirm=confirm,
        learn_from=learn_from,
    )
    if learn_from and strategy not in USES_EXPERIENCE:
        raise click.UsageError(
            f"--learn-from needs --strategy {' or '.join(sorted(USES_EXPERIENCE))}"
        )
    if audit and not options.explores:
        raise click.UsageError(
            "--audit measures what a strategy skipped; give --strategy or --budget"
        )
    configs = _of_axes(options) if axes else None
    if stale:
        from fa_tune.commands.staleness import show

        show(options, configs, as_json=as_json, csv=csv, limit=limit, quiet=quiet)
        return
    with watching(quiet) as progress, session.ready_workers(options.machine):
        result = flow.search(options, progress, configs)
    progress.note_once(result.source)
    for warning in result.warnings:
        progress.warn_once(warning)
    for one in result.results:
        if one.decision is None:
            progress.warn_once(f"{one.workload.key}: {one.problem or 'nothing could be chosen'}")

    if as_json:
        from fa_tune.commands.shared.output import write_json

        write_json(_document(result))
    elif csv == STDOUT:
        from fa_tune.report.formats import write

        write([row for one in result.results for row in _rows(result, one)], "csv", sys.stdout)
    else:
        _show(result, limit)
    if as_json or csv == STDOUT:
        progress.note(f"Measurements: {result.source}.")
    if all(one.decision is None for one in result.results):
        raise NoUsableVariant("no workload has a config that can be chosen")


def _of_axes(options: SearchOptions) -> list[Config]:
    from fa_tune.commands.shared.axes import device_limits, expanded
    from fa_tune.tune.candidates import choose_families

    chosen = choose_families(options.families, device_limits(options.machine))
    grid = options.workloads
    return expanded(options.axes, options.kernels, grid.dtypes, grid.d_heads, chosen)


def _rows(result: SearchResult, one: WorkloadResult) -> list[Row]:
    from fa_tune.store.table.from_attempts import rows_from_attempts

    return rows_from_attempts(one.attempts, result.resources)


def _show(result: SearchResult, limit: int | None) -> None:
    from fa_tune.commands.shared.output import say
    from fa_tune.commands.views.search import label, rejected_line, summary
    from fa_tune.report.formats import write

    summaries = []
    for one in result.results:
        rows = _rows(result, one)
        # Nothing but "no recording holds it" is told better by the one line below.
        if any(row.outcome is not Outcome.NOT_RECORDED for row in rows):
            write(rows, "table", sys.stdout, limit=limit)
            say()
        summaries.append(summary(one, label(one.workload, rows)))
    for text in summaries:
        say(text)
    if result.rejected:
        say(rejected_line(result.rejected))
    if result.reused and result.measured:
        say(f"{result.measured} measured now, {result.reused} taken from earlier runs.")
    if result.disagreement is not None:
        say(f"{result.disagreement.sentence}.")
    if result.registry is not None and any(one.decision for one in result.results):
        say(f"Kept in {result.registry}.")
    say(f"Measurements: {result.source}.")


def _disagreement(result: SearchResult) -> dict[str, Any] | None:
    """The GPUs' figures, and the two that sum them up."""
    found = result.disagreement
    if found is None:
        return None
    return dataclasses.asdict(found) | {"time": found.time, "ratio": found.ratio}


def _document(result: SearchResult) -> dict[str, Any]:
    from fa_tune.commands.shared.output import rows_as_objects

    return {
        "schema": SCHEMA,
        "whose": result.source,
        "method": result.method,
        "device": dataclasses.asdict(result.device) if result.device else None,
        "registry": str(result.registry) if result.registry else None,
        "measured": result.measured,
        "reused": result.reused,
        "warnings": list(result.warnings),
        "disagreement": _disagreement(result),
        "workloads": [
            {
                "workload": one.workload.key,
                "decision": dataclasses.asdict(one.decision) if one.decision else None,
                "confirmation": _confirmation(one),
                "exploration": dataclasses.asdict(one.exploration) if one.exploration else None,
                "problem": one.problem or None,
                "families": [dataclasses.asdict(standing) for standing in one.families],
                "rows": rows_as_objects(_rows(result, one)),
            }
            for one in result.results
        ],
        "rejected": [
            {"variant": variant.key, "constraint": why.constraint, "reason": why.reason}
            for variant, why in result.rejected
        ],
    }


def _confirmation(one: WorkloadResult) -> dict[str, Any] | None:
    found = one.confirmation
    return {**dataclasses.asdict(found), "upheld": found.upheld} if found is not None else None
