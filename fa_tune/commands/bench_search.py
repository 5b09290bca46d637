"""`fa-tune bench-search`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import flag, gathered, option, refuse_same_file
from fa_tune.commands.shared.output import say, tell, write_table_csv
from fa_tune.commands.shared.parameters import (
    STRATEGIES_LIST,
    WORKLOAD,
    NamedPath,
    WholeNumber,
    output_file,
)
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.paths import profiles_dir
from fa_tune.core.workload import Workload
from fa_tune.lab.kernel_tuner import PREFIX, all_strategies, require
from fa_tune.lab.replay import LEVELS, MEDIAN, UNLUCKY, Score
from fa_tune.lab.scores import BenchSearch, document, read
from fa_tune.lab.space_table import RecordedWorkload, find, load, recorded
from fa_tune.lab.strategies import (
    Comparison,
    cells,
    closing,
    compare,
    headings,
    headline,
    priors_from,
)
from fa_tune.report.page import picture
from fa_tune.report.page.figures import Records
from fa_tune.search.strategies import STRATEGIES

SEEDS = WholeNumber(1, 10_000)
OTHERS = "Kernel Tuner"  # of one colour in a picture
QUANTILES = {MEDIAN: "median", UNLUCKY: "unluckiest tenth"}

_CSV_HEADINGS = (
    *("space", "strategy", "configs", "seeds", "limit"),
    *(f"{100 * level:.0f}% {q}" for level in LEVELS for q in ("median", "p90")),
)


@click.command("bench-search")
@click.argument("paths", nargs=-1, type=NamedPath(), metavar="[PATH]…")
@option(
    "--strategy",
    "strategies",
    type=STRATEGIES_LIST,
    default="learned",
    metavar="NAME,…",
    help=f"Strategies to compare: {', '.join(STRATEGIES)}, or none.",
)
@option(
    "--kernel-tuner",
    metavar="all|NAME,…",
    help="Also run strategies of Kernel Tuner on the same spaces, by its own names: "
    "genetic_algorithm, pso, …",
)
@option("--seeds", type=SEEDS, default=100, help="Runs of each.")
@option(
    "--external-seeds",
    type=SEEDS,
    show_default="like --seeds",
    help="Runs of external strategies, Kernel Tuner's and Optuna's, which take longer.",
)
@option(
    "--limit",
    type=WholeNumber(1, 100_000),
    default=200,
    help="Measurements after which a run ends.",
)
@option(
    "--batch",
    type=WholeNumber(1, 1000),
    default=1,
    help="Points that our strategies propose at a time; a search on a GPU takes 4.",
)
@option(
    "--default",
    type=click.Choice(["told", "hidden", "both"]),
    default="told",
    help="Whether our strategies are told which config is the default, and so measure it first, "
    "as a search does; Kernel Tuner's are never told.",
)
@flag(
    "--transfer",
    help="Also run learned with the results of the other workloads of these spaces; those of the "
    "workload under test are left out.",
)
@option("--workload", type=WORKLOAD, metavar="KEY", help="Only this workload.")
@option(
    "--jobs",
    "-j",
    type=WholeNumber(1, 1024),
    show_default="one per core",
    help="Processes to run in parallel.",
)
@option(
    "--add",
    multiple=True,
    type=NamedPath(dir_okay=False),
    metavar="FILE",
    show_default=False,
    help="Also show results of an earlier run with --json: other strategies on the same spaces, "
    "with the same --limit. Repeat it for more files.",
)
@option(
    "--plot",
    type=output_file(stdout=False),
    metavar="FILE",
    help="Also draw the share of the best over measurements, as .svg, .png or .pdf.",
)
@shared_options("csv", "as_json", "quiet")
@gathered(
    *("plan", Comparison),
    ("strategies", "default", "seeds", "external_seeds", "limit", "batch", "jobs"),
)
def command(
    paths: tuple[Path, ...],
    plan: Comparison,
    kernel_tuner: str | None,
    transfer: bool,
    workload: Workload | None,
    add: tuple[Path, ...],
    plot: Path | None,
    output: Output,
    quiet: bool,
) -> None:
    """Replay search strategies on recorded spaces and count the measurements they need.

    PATH is a recorded space (FILE.space.csv.gz), or a folder with some; without one, those that
    come with fa-tune. A cell like 12 / 25 says: half of the runs had found a config that
    reaches this share of the best one's speed after 12 measurements, nine tenths after 25.
    Random search is not run but calculated. No GPU is needed.

    \b
    Examples:
      fa-tune bench-search --strategy learned,optuna-tpe --plot search.svg
      fa-tune bench-search profiles/nvidia_h200 --kernel-tuner all \\
          --external-seeds 20
    """
    refuse_same_file(("--csv", output.csv), ("--plot", plot), *(("--add", one) for one in add))
    if plot is not None:
        picture.check_suffix(plot)
    spaces = _spaces(paths, workload)
    others = _spaces(paths, None) if transfer else []
    earlier: dict[str, list[Score]] = {}
    for path in add:
        for name, scores in read(path, plan.limit).items():
            earlier.setdefault(name, []).extend(scores)
    theirs: tuple[str, ...] = ()
    if kernel_tuner and kernel_tuner != "none":
        require()
        named = tuple(w.strip() for w in kernel_tuner.split(",") if w)
        theirs = all_strategies() if kernel_tuner == "all" else named
    plan = replace(
        plan,
        kernel_tuner=theirs,
        jobs=plan.jobs or os.cpu_count() or 1,
        lenient=kernel_tuner == "all",  # what was asked for by name has to run
    )
    scored: list[tuple[RecordedWorkload, list[Score]]] = []
    with watching(quiet) as progress:
        for space in spaces:
            scores = compare(space, plan, progress, priors_from(space, others))
            here = {score.strategy for score in scores}
            scores += [s for s in earlier.get(space.name, ()) if s.strategy not in here]
            scored.append((space, scores))
    if output.as_json:
        write_document(BenchSearch, document(plan, scored))
    if output.csv is not None:
        rows = [
            [s.space, s.strategy, s.n_points, s.n_seeds, s.limit]
            + [n for level in LEVELS for n in s.needed[level]]
            for _, scores in scored
            for s in scores
        ]
        write_table_csv(_CSV_HEADINGS, rows, output.csv)
    if output.is_table:
        for space, scores in scored:
            tell(headline(space, plan.default))
            say(fitted_table(headings(plan.limit), [cells(s) for s in scores], {"strategy"}))
            say()
        tell(closing(plan))
    if plot is not None:
        from fa_tune.report.page import charts  # late: altair is slow to load

        picture.save(plot, charts.curves(_records([scores for _, scores in scored]), OTHERS))


def _spaces(paths: Sequence[Path], workload: Workload | None) -> list[RecordedWorkload]:
    found = [
        space
        for path in find(paths or [profiles_dir()])
        for space in recorded(load(path))
        if workload is None or space.rows[0].workload == workload.key
    ]
    if not found:
        wanted = workload.key if workload else "any workload"
        raise NoUsableVariant(f"no recorded space has {wanted}")
    return found


def _records(spaces: Sequence[Sequence[Score]]) -> Records:
    """The corners of each curve: the share of the best at the median and for all but the unluckiest
    tenth of the seeds, over measurements; of Kernel Tuner's strategies the medians alone."""
    return [
        {
            "space": score.space,
            "strategy": OTHERS if _is_other(score) else score.strategy,
            "line": f"{score.strategy} {name}",
            "quantile": name,
            "measurements": measurements,
            "share": share,
        }
        for scores in spaces
        for score in sorted(scores, key=_is_other, reverse=True)  # theirs below ours
        for quantile, name in QUANTILES.items()
        if quantile == MEDIAN or not _is_other(score)
        for curve in [score.curve[quantile]]
        for measurements, share in enumerate(curve, 1)
        if measurements in (1, len(curve)) or share != curve[measurements - 2]
    ]


def _is_other(score: Score) -> bool:
    return score.strategy.startswith(PREFIX)
