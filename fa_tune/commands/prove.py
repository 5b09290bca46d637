"""`fa-tune prove`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import option, refuse_same_file
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.shared.parameters import BUDGET, Read
from fa_tune.commands.shared.progress import watching
from fa_tune.core import devices
from fa_tune.core.errors import NoUsableVariant, ToolMissing
from fa_tune.core.options import SearchOptions
from fa_tune.report.page.proof import write_proof
from fa_tune.report.proof import sentences
from fa_tune.search.strategies.budget import Budget
from fa_tune.store.proof import Proof
from fa_tune.store.registry.file import load
from fa_tune.tune.outputs import registry_path
from fa_tune.tune.prove import ProveOptions, prove, read_metric

METRIC = Read("regex", read_metric, None)
HEADINGS = ("share", "time", "runs", "served by", "kernel", "why")


@click.command("prove", cls=GroupedCommand)
@click.argument("program", metavar="-- CMD…", nargs=-1, required=True, type=click.UNPROCESSED)
@option(
    "--metric",
    type=METRIC,
    metavar="REGEX",
    show_default="the program's wall time",
    help="What the program prints of its speed: a regular expression with one group, a number, on "
    "either stream. Of several matches in a run the median counts. Needs --lower-is-better or "
    "--higher-is-better.",
)
@click.option(
    "--higher-is-better/--lower-is-better",
    default=None,
    help="Whether the number of --metric is a rate or a time.",
)
@option(
    "--budget",
    type=BUDGET,
    default="300s",
    metavar="N|Ns|N,Ns",
    help="Limit of the timed runs: pairs of runs (20), seconds (300s), or both (20,300s).",
)
@shared_options("registry", "html", "as_json", "quiet")
def command(
    program: tuple[str, ...],
    metric: re.Pattern[str] | None,
    higher_is_better: bool | None,
    budget: Budget,
    options: SearchOptions,
    html: Path | None,
    output: Output,
    quiet: bool,
) -> None:
    """Run a program with fa-tune's kernels and without, and say what it gains.

    The program is not changed: with fa-tune, torch's scaled_dot_product_attention runs our kernels
    in all of its processes, as after enable_sdpa(). A first run is not timed, and shows which
    kernel served which share of its attention. Then fresh processes take turns, with and without,
    until the 95 % interval of the ratio is narrower than the gain, a gain of over 1 % is excluded,
    or the budget is spent.

    After Ctrl-C, the budget, or a run that fails, the result has the coverage and the finished
    pairs. Exit status 4 if a run fails, or the first has no attention on a GPU or no end.

    \b
    Examples:
      fa-tune prove -- python train.py --steps 50
      fa-tune prove --metric '([0-9.]+) ms' --lower-is-better -- python train.py
      fa-tune prove --metric '([0-9.]+) tok/s' --higher-is-better \\
          --html proof.html -- ./generate.sh
    """
    registry = registry_path(options.registry)
    refuse_same_file(("--html", html), ("--registry", registry))
    if (metric is None) != (higher_is_better is None):
        raise click.UsageError(
            "--metric goes with --lower-is-better or --higher-is-better, and these with --metric"
        )
    if devices.find_device() is None:
        raise ToolMissing("no GPU found: prove runs a program's attention on one")
    with watching(quiet) as progress:
        if not load(registry).entries:
            progress.note(f"The registry {registry} has no entry: defaults run.")
        limits = budget.measurements, budget.seconds
        asked = ProveOptions(program, metric, bool(higher_is_better), registry, *limits)
        proof = prove(asked, progress)
    if output.as_json:
        write_document(Proof, proof)
    else:
        _show(proof)
    if html is not None:
        write_proof(html, proof)
        progress.note(f"The page is {html}.")
    if proof.ended == "interrupted":
        raise KeyboardInterrupt
    if proof.ended == "failed":
        raise NoUsableVariant(proof.problem or "a run failed")


def _show(proof: Proof) -> None:
    for sentence in sentences(proof):
        tell(sentence)
    if proof.coverage is not None and proof.coverage.shares:
        rows = [
            [
                f"{100 * part.share:.1f} %",
                f"{1e3 * part.time_s:.2f} ms",
                str(part.runs),
                ", ".join(filter(None, [part.served.by, part.served.entry])),
                part.served.kernel,
                part.served.why,
            ]
            for part in proof.coverage.shares
        ]
        say()
        say(fitted_table(HEADINGS, rows, {*HEADINGS[3:]}))
