"""`fa-tune search`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click

from fa_tune.commands.shared.axes import configs_of
from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.grouped_help import HEADINGS, GroupedCommand
from fa_tune.commands.shared.option_groups import Output, is_typed, shared_options
from fa_tune.commands.shared.options import flag, folder, option, refuse_same_file
from fa_tune.commands.shared.output import say, write_rows_csv, write_table_csv
from fa_tune.commands.shared.parameters import BUDGET, STDOUT, STRATEGY, NamedPath, WholeNumber
from fa_tune.commands.shared.progress import PlainProgress, watching
from fa_tune.commands.views.search import all_rows, page_source, show_search, write_search
from fa_tune.commands.views.verdicts import check_users
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Variant
from fa_tune.core.options import CANDIDATES, SearchOptions
from fa_tune.families.base import Config
from fa_tune.lab.strategies import priors_in
from fa_tune.report.page.render import write_page
from fa_tune.search.strategies import DEFAULT, STRATEGIES, USES_PRIORS
from fa_tune.search.strategies.budget import Budget
from fa_tune.search.strategies.transfer import Prior
from fa_tune.store.capture.schema import load
from fa_tune.store.capture.workloads import wishes_of
from fa_tune.tune import flow, session
from fa_tune.tune.captured import search_captured
from fa_tune.tune.outputs import save_csv
from fa_tune.tune.plan import passes
from fa_tune.tune.results import SearchResult, as_one
from fa_tune.tune.staleness import AttemptStanding, Staleness, why_stale

STALE_ROWS = 20  # shown, unless --limit says otherwise
SHOWN = 24  # characters of a value
STALE_HEADINGS = ("workload", "config", "field", "was", "is")


@dataclass(frozen=True, kw_only=True)
class Stale:
    """`fa-tune search --why-stale --json`"""

    schema: Literal["fa-tune-stale-1"]
    standings: tuple[AttemptStanding, ...]


@click.command("search", cls=GroupedCommand)
@option(
    "--strategy",
    type=STRATEGY,
    default=DEFAULT,
    metavar="NAME",
    help="What to measure, if not everything: "
    + "; ".join(f"{name}: {what}" for name, (_, what) in STRATEGIES.items())
    + ".",
)
@option(
    "--budget",
    type=BUDGET,
    metavar="N|Ns|N,Ns",
    show_default="no limit",
    help="Limit for each workload: measurements (60), seconds of measuring (300s), or both "
    "(60,300s); the final among the fastest is not counted.",
)
@option(
    "--audit",
    type=WholeNumber(0, 100_000),
    default=0,
    help="Also measure N random configs that the strategy skipped, and say how much faster the "
    "fastest of them is.",
)
@option(
    "--learn-from",
    multiple=True,
    type=NamedPath(),
    metavar="PATH",
    show_default=False,
    help="Recorded spaces of this GPU model (FILE.space.csv.gz, or folders with some): learned "
    "starts from their results on other workloads and corrects them by its own. Repeat it "
    "for more.",
)
@shared_options(
    *("workloads", "kernels", "families", "axes", "registry", "resume", "html"),
    *("profiler", "runs", "references", "users", "clock_control", "inputs", "seed"),
    *("csv", "as_json", "limit", "wide"),
    *("arch", "jobs", "compile_timeout_s", "device", "devices", "ray", "ncu", "recordings"),
    *("cache_dir", "quiet"),
    limit="the 5 fastest configs, the chosen one and the default; all with --wide",
    step=True,
)
@flag(
    "--why-stale",
    "stale",
    help="Measure nothing: list the variants without a valid attempt in the journal, and what has "
    "changed since.",
)
@option(
    "--confirm/--no-confirm",
    default=True,
    help="On a GPU, compare each choice with the default on all built-in inputs, and once more in "
    "a fresh process, launched as a program would (some seconds in all). If it is over 2 % behind "
    "on any inputs, take the next best; if it gains nothing, the default.",
)
@option(
    "--captured",
    type=NamedPath(),
    metavar="FILE",
    show_default=False,
    help="The workloads of a program, as fa-tune capture wrote them, the costliest first, until "
    "the others can gain less than 1 % of its attention's time. No search begins after the seconds "
    "of --budget.",
)
@option(
    "--candidates",
    type=click.Choice(CANDIDATES),
    default=CANDIDATES[0],
    help="own: our kernels; all: installed libraries as well. Where one of them is faster, also as "
    "a program calls both, the registry names it and fa_tune.op.attention calls it; the chosen "
    "kernel runs where it is missing.",
)
@folder("--record", help="Keep the measurements as a recording for replay in DIR.")
def command(
    options: SearchOptions,
    captured: Path | None,
    budget: Budget | None,
    learn_from: tuple[Path, ...],
    stale: bool,
    html: Path | None,
    output: Output,
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
      fa-tune search --captured capture.json --budget 300s
    """
    refuse_same_file(("--csv", output.csv), ("--html", html), ("--registry", options.registry))
    limits = budget or Budget()
    if captured is not None:
        _refuse_beside_captured(stale=stale, record=options.record is not None)
    options = replace(
        options,
        csv=None if output.csv == STDOUT else output.csv,
        measurements=limits.measurements,
        seconds=limits.seconds,
    )
    if options.record is not None and options.measure.profiler == "replay":
        raise click.UsageError("--record keeps new measurements; --profiler replay makes none")
    if options.audit and not options.explores:
        raise click.UsageError(
            "--audit measures what a strategy skipped; give --strategy or --budget"
        )
    if learn_from and options.strategy not in USES_PRIORS:
        raise click.UsageError(f"--learn-from needs --strategy {' or '.join(sorted(USES_PRIORS))}")
    priors = priors_in(learn_from)
    if options.explores:  # the strategy draws by the seed, whoever measures
        typed = options.measure.typed - {"seed"}
        options = replace(options, measure=replace(options.measure, typed=typed))
    if stale:
        with watching(quiet) as progress:
            found = [why_stale(one, progress, _configs(one)) for one in passes(options)]
        _show_staleness(Staleness(tuple(s for one in found for s in one.standings)), output)
        return
    with watching(quiet) as progress, session.ready_workers(options.machine):
        if captured is None:
            result = _of_passes(options, priors, progress)
        else:
            result = _of_captured(captured, options, priors, progress)
    without_a_choice = [
        f"{found.workload.key}: {found.problem or 'nothing could be chosen'}"
        for found in result.results
        if found.decision is None
    ]
    progress.tell(result.source, [*result.warnings, *without_a_choice])
    if html is not None:
        write_page(html, [page_source(result)])
        progress.note(f"The page is {html}.")
    if output.as_json:
        write_search(result, progress.stages_s())
    elif output.csv == STDOUT:
        write_rows_csv(all_rows(result), STDOUT)
    else:
        show_search(result, output.limit, wide=output.wide)
    if not output.is_table:
        progress.note(f"Measurements: {result.source}.")
    if result.not_kept is not None:
        raise result.not_kept
    if len(without_a_choice) == len(result.results):
        raise NoUsableVariant("no workload has a config that can be chosen")
    check_users(result.attempts)


def _configs(options: SearchOptions) -> list[Config] | None:
    return configs_of(options, options.workloads.workloads()) if options.axes else None


def _of_passes(
    options: SearchOptions, priors: Sequence[Prior], progress: PlainProgress
) -> SearchResult:
    """What was found for each pass, kept as one search's would be."""
    searches = passes(options)
    result = as_one([flow.search(one, progress, _configs(one), priors) for one in searches])
    if options.csv is not None and searches[1:]:  # each of them wrote its own
        save_csv(options.csv, result)
    return result


def _refuse_beside_captured(**others: bool) -> None:
    """Raise UsageError for options that say what the workloads are, or that are of one search."""
    for one in click.get_current_context().command.params:
        says = one.name in HEADINGS["Workloads"] and one.name != "captured"
        if (says and is_typed(str(one.name))) or others.get(str(one.name)):
            raise click.UsageError(f"--captured says the workloads: leave {one.opts[0]} out")


def _of_captured(
    path: Path, options: SearchOptions, priors: Sequence[Prior], progress: PlainProgress
) -> SearchResult:
    """What was found for the workloads of a program, kept as one search's would be."""
    wishes = wishes_of(load(path))
    if not wishes.attention_s:
        raise NoUsableVariant(f"{path}: no attention was timed; capture a longer run")
    for reason, seconds in (*wishes.refused_s.items(), ("tuned already", wishes.tuned_s)):
        if seconds:
            share = seconds / wishes.attention_s
            progress.note(f"{share:.1%} of the attention's time is left as it is: {reason}")
    found = search_captured(
        replace(options, csv=None, seconds=None),
        wishes,
        options.seconds,
        lambda one: flow.search(one, progress, _configs(one), priors),
        progress,
    )
    progress.note(found.ended)
    if found.result is None:
        raise NoUsableVariant(f"{path}: nothing was tuned; {found.ended}")
    if options.csv is not None:
        save_csv(options.csv, found.result)
    return found.result


def _show_staleness(found: Staleness, output: Output) -> None:
    """What a search would measure again, and why, on standard output and in a CSV file."""
    if output.as_json:
        write_document(Stale, standings=found.standings)
    rows = [
        [standing.workload, Variant.from_key(standing.subject).config, d.field, d.was, d.now]
        for standing in found.stale
        for d in standing.differences
    ]
    if output.csv is not None:
        write_table_csv(STALE_HEADINGS, rows, output.csv)
    if not output.is_table:
        return
    if rows:
        some = [
            [*r[:3], *(v if len(v) <= SHOWN else f"{v[: SHOWN - 1]}…" for v in r[3:])]
            for r in rows[: output.limit or STALE_ROWS]
        ]
        say(fitted_table(STALE_HEADINGS, some, set(STALE_HEADINGS), configs="config"))
        if len(rows) > len(some):
            say(f"{len(rows) - len(some)} more; --csv has all.")
    say(found.sentence)
