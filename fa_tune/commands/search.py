"""`fa-tune search`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from fa_tune.commands.shared.axes import device_limits, expanded
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import machine_options, measure_options, workload_options
from fa_tune.commands.shared.options import (
    axis_option,
    csv_option,
    family_option,
    folder,
    json_option,
    kernels_option,
    limit_option,
    option,
    quiet_option,
    refuse_both,
    refuse_same_file,
    registry_option,
    wide_option,
)
from fa_tune.commands.shared.output import write_json
from fa_tune.commands.shared.parameters import (
    STDOUT,
    BudgetType,
    NamedPath,
    OutputFile,
    StrategyName,
    WholeNumber,
)
from fa_tune.commands.shared.progress import PlainProgress, watching
from fa_tune.commands.shared.users import check_users
from fa_tune.commands.views.page import page_source
from fa_tune.commands.views.search import search_document, show_search, workload_rows
from fa_tune.commands.views.staleness import show_staleness
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.options import MachineOptions, MeasureOptions, SearchOptions, WorkloadOptions
from fa_tune.families.base import Config
from fa_tune.lab.strategies import priors_in
from fa_tune.report.formats import write
from fa_tune.report.page.render import write_page
from fa_tune.search.strategies import DEFAULT, STRATEGIES, USES_PRIORS
from fa_tune.search.strategies.budget import Budget
from fa_tune.tune import flow, session
from fa_tune.tune.candidates import choose_families
from fa_tune.tune.results import SearchResult
from fa_tune.tune.staleness import why_stale


@click.command("search", cls=GroupedCommand)
@workload_options()
@kernels_option()
@family_option()
@axis_option()
@option(
    "--strategy",
    "strategy",
    type=StrategyName(tuple(STRATEGIES)),
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
    help="Limit for each workload: measurements (60), seconds of measuring (300s), or both "
    "(60,300s); the final among the fastest is not counted.",
)
@option(
    "--audit",
    "audit",
    type=WholeNumber(0, 100_000),
    default=0,
    help="Also measure N random configs that the strategy skipped, and say how much faster the "
    "fastest of them is.",
)
@option(
    "--learn-from",
    "learn_from",
    multiple=True,
    type=NamedPath(readable=False),
    metavar="PATH",
    show_default=False,
    help="Recorded spaces of this GPU model (FILE.space.csv.gz, or folders with some): learned "
    "starts from their results on other workloads and corrects them by its own. Repeat it "
    "for more.",
)
@measure_options("profiler", "runs", "references", "users", "clock_control", "inputs", "seed")
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
    help="Measure nothing: list the variants without a valid attempt in the journal, and what has "
    "changed since.",
)
@option(
    "--confirm/--no-confirm",
    "confirm",
    default=True,
    help="On a GPU, compare each choice with the default on all built-in inputs, and once more in "
    "a fresh process, launched as a program would (some seconds in all). If it is over 2 % behind "
    "on any inputs, take the next best; if it gains nothing, the default.",
)
@folder("--record", "record", help="Keep the measurements as a recording for replay in DIR.")
@option(
    "--html",
    "html",
    type=OutputFile(stdout=False),
    metavar="FILE",
    help="Also write a page of figures and tables: one file that needs no network.",
)
@csv_option()
@json_option()
@limit_option("the 5 fastest configs, the chosen one and the default; all with --wide")
@wide_option()
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
    html: Path | None,
    csv: Path | None,
    as_json: bool,
    limit: int | None,
    wide: bool,
    quiet: bool,
) -> None:
    """Find the fastest kernel for each workload and keep it in the registry.

    Compiles every config of a set, checks its result against a reference, measures the correct
    ones, and chooses. There is one workload per sequence length, batch, head dimension and element
    type. Standard output gets a table and a summary for each; `*` marks the chosen config.

    The set is taken from every family of kernels that runs on the device, or from those that
    --family names. The registry's entries and each family's default config compete as well.

    With --strategy or --budget only some configs are measured: a strategy proposes them from the
    results so far, and the fastest are measured again in a final with the defaults.

    An interrupted search keeps what it has finished; the same command continues from there.
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
    refuse_same_file(("--csv", csv), ("--html", html), ("--registry", registry))
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
    )
    _refuse_contradictions(options)
    if learn_from and strategy not in USES_PRIORS:
        raise click.UsageError(f"--learn-from needs --strategy {' or '.join(sorted(USES_PRIORS))}")
    if options.explores:  # the strategy draws by the seed, whoever measures
        measure = replace(measure, typed=measure.typed - {"seed"})
        options = replace(options, measure=measure)
    configs = _of_axes(options) if axes else None
    priors = priors_in(learn_from)
    if stale:
        with watching(quiet) as progress:
            found = why_stale(options, progress, configs)
        show_staleness(found, as_json=as_json, csv=csv, limit=limit)
        return
    with watching(quiet) as progress, session.ready_workers(options.machine):
        result = flow.search(options, progress, configs, priors)
    _warn(result, progress)
    if html is not None:
        write_page(html, [page_source(result)])
        progress.note(f"The page is {html}.")
    _write(result, progress, as_json=as_json, csv=csv, limit=limit, wide=wide)
    if result.not_kept is not None:
        raise result.not_kept
    if all(found.decision is None for found in result.results):
        raise NoUsableVariant("no workload has a config that can be chosen")
    check_users([attempt for found in result.results for attempt in found.attempts])


def _refuse_contradictions(options: SearchOptions) -> None:
    """Raise click.UsageError for options that mean nothing together."""
    if options.record is not None and options.measure.profiler == "replay":
        raise click.UsageError("--record keeps new measurements; --profiler replay makes none")
    if options.audit and not options.explores:
        raise click.UsageError(
            "--audit measures what a strategy skipped; give --strategy or --budget"
        )


def _warn(result: SearchResult, progress: PlainProgress) -> None:
    """What the search warns of, and the workloads without a choice."""
    progress.note_once(result.source)
    for warning in result.warnings:
        progress.warn_once(warning)
    for found in result.results:
        if found.decision is None:
            problem = found.problem or "nothing could be chosen"
            progress.warn_once(f"{found.workload.key}: {problem}")


def _write(
    result: SearchResult,
    progress: PlainProgress,
    *,
    as_json: bool,
    csv: Path | None,
    limit: int | None,
    wide: bool,
) -> None:
    """The result on standard output, in the form that was asked for."""
    if as_json:
        write_json(search_document(result) | {"stages_s": progress.times.by_stage()})
    elif csv == STDOUT:
        rows = [row for found in result.results for row in workload_rows(result, found)]
        write(rows, "csv", sys.stdout)
    else:
        show_search(result, limit, wide=wide)
    if as_json or csv == STDOUT:
        progress.note(f"Measurements: {result.source}.")


def _of_axes(options: SearchOptions) -> list[Config]:
    chosen = choose_families(
        options.families, device_limits(options.machine), workloads=options.workloads.workloads()
    )
    grid = options.workloads
    heads = (grid.d_heads, chosen, grid.d_head_v)
    return expanded(options.axes, options.kernels, grid.dtypes, *heads)
