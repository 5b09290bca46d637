"""`fa-tune bench-between`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import recordings_option
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.views.registry_table import workload_text
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.paths import profiles_dir
from fa_tune.lab.between import Losses, Single, losses_of
from fa_tune.report.formats import text_table

MOST = 0.03  # that the rule may lose, where it was not tuned
_SHORT = ("workload", "rule", "nearest", "default", "single")
_WIDE = ("GPU", "method", *_SHORT, "config of the rule", "tuned", "near")
_KEY = (
    "Percent more time than the config that tuning chose, for: the config that the registry's rule "
    "gives without that tuning, that of the nearest workload, the default, and the single config "
    "that loses least overall."
)


@dataclass(frozen=True, kw_only=True)
class BenchBetween:
    """`fa-tune bench-between --json`"""

    schema: Literal["fa-tune-bench-between-1"]
    losses: Sequence[Losses]
    single: Sequence[Single]


@click.command("bench-between", cls=GroupedCommand)
@recordings_option(
    show_default="those that come with fa-tune",
    help="Recordings to use: a folder with one folder per GPU, or one of those.",
)
@shared_options("as_json", "wide")
def command(recordings: Path | None, output: Output) -> None:
    """Check the registry's rule for decoding at lengths and batches between the tuned ones.

    Each recorded workload is left out in turn, together with all within half a doubling of it, and
    the rule chooses a config for it from the others. For comparison: the config of the nearest
    workload, the default, and one config for all. No GPU is needed.

    \b
    Example:
      fa-tune bench-between
    """
    found, singles = losses_of(recordings or profiles_dir())
    if not found:
        raise NoUsableVariant(
            "no recording has several workloads of few queries and many keys; record some with "
            "search --record or tools/record_decode.sh, and pass their folder with --recordings"
        )
    if output.as_json:
        write_document(BenchBetween, losses=found, single=singles)
        return
    if output.wide:
        say(text_table(_WIDE, [_row(loss) for loss in found], set(_WIDE) - {*_SHORT[1:]}))
    else:
        for of in dict.fromkeys((loss.gpu, loss.method) for loss in found):
            say("; ".join(of))
            rows = [_row(loss)[2:7] for loss in found if (loss.gpu, loss.method) == of]
            say(fitted_table(_SHORT, rows, {"workload"}))
            say()
    for text in (_KEY, *_sentences(found, singles)):
        tell(text, wide=output.wide)


def _row(loss: Losses) -> list[str]:
    figures = (loss.rule, loss.nearest, loss.default, loss.single)
    return [
        *(loss.gpu, loss.method, workload_text(loss.workload)),
        *("" if f is None else f"{100 * f:z.1f}" for f in figures),
        *(loss.chosen, loss.tuned, workload_text(loss.near)),
    ]


def _sentences(found: Sequence[Losses], singles: Sequence[Single]) -> list[str]:
    rule = [loss.rule for loss in found if loss.rule is not None]
    texts = []
    if rule:
        more = sum(lost > MOST for lost in rule)
        often = f"more than {100 * MOST:g} % on {more} of {len(rule)}"
        texts.append(f"The rule loses {_figures(rule)}; {often}.")
    for name, label in (("nearest", "The nearest workload's config"), ("default", "The default")):
        lost = [f for loss in found if (f := getattr(loss, name)) is not None]
        if lost:
            texts.append(f"{label} loses {_figures(lost)}.")
    texts += [
        f"One config for all {single.problems} workloads on an {single.gpu} by {single.method} "
        f"loses {100 * single.mean:.1f} % on average and {100 * single.worst:.1f} % at worst: "
        f"{single.config}."
        for single in singles
    ]
    return texts


def _figures(lost: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(lost):.1f} % on average and {100 * max(lost):.1f} % at worst"
