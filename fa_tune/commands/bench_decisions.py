"""`fa-tune bench-decisions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import click

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import flag, option
from fa_tune.commands.shared.output import say, write_table_csv
from fa_tune.commands.shared.parameters import NamedPath, WholeNumber, output_file
from fa_tune.commands.shared.progress import watching
from fa_tune.core import devices
from fa_tune.core.errors import ToolMissing
from fa_tune.core.options import SearchOptions
from fa_tune.core.stats import MARGIN, Ratio
from fa_tune.lab import repeat
from fa_tune.lab.repeatability import Agreement, RecordedTunings, Tuning, agreement, load, simulated


@dataclass(frozen=True, kw_only=True)
class BenchDecisions:
    """`fa-tune bench-decisions --json`"""

    schema: Literal["fa-tune-bench-decisions-1"]
    whose: str
    workloads: tuple[Agreement, ...]
    tunings: Annotated[tuple[Mapping[str, Any], ...], "As the columns of its CSV."]


@click.command("bench-decisions", cls=GroupedCommand)
@option(
    "--tunings",
    "n",
    type=WholeNumber(2, 10_000),
    default=10,
    help="Independent tunings of each workload.",
)
@option(
    "--from",
    "sources",
    multiple=True,
    type=NamedPath(),
    metavar="FILE",
    help="Decide tunings that `bench-decisions --to` recorded again, by the present rules; no GPU"
    " is needed. Repeat it for more files.",
)
@flag(
    "--simulate",
    help="With --from: simulate that many tunings (--tunings) of each workload by drawing rounds "
    "from the recorded ones.",
)
@option(
    "--to",
    type=output_file(stdout=False),
    metavar="FILE",
    help="Write each tuning's samples and choice to a JSON file as soon as it is finished; the "
    "same command continues from there.",
)
@option(
    "--confirm/--no-confirm",
    default=True,
    help="Compare each choice with the default once more, as a search does.",
)
@shared_options(
    *("workloads", "kernels", "families", "profiler", "runs", "references", "clock_control"),
    *("seed", "csv", "as_json"),
    *("arch", "jobs", "compile_timeout_s", "device", "ncu", "cache_dir", "quiet"),
)
def command(
    options: SearchOptions,
    n: int,
    sources: tuple[Path, ...],
    simulate: bool,
    to: Path | None,
    output: Output,
    quiet: bool,
) -> None:
    """Tune each workload several times from scratch, and say how often the choice is the same.

    Each tuning has its own process, journal, registry and seed; compiled kernels and their
    verification are shared. For comparison, the same samples are also decided by the lowest median
    and by the lowest sample. Each choice is compared with the default in the samples of the other
    tunings, which it was not chosen by.

    \b
    Examples:
      fa-tune bench-decisions --seq-lens 1024 --dtype fp16 --profiler events \\
          --to ten.json
      fa-tune bench-decisions --from ten.json --simulate --tunings 1000
    """
    if simulate and not sources:
        raise click.UsageError("--simulate draws from recorded tunings; name them with --from")
    if sources and to is not None:
        raise click.UsageError("--to keeps new tunings; --from makes none")
    if options.measure.profiler == "replay":
        raise click.UsageError("a replay repeats itself; use --from with recorded tunings")

    with watching(quiet) as progress:
        if sources:
            seed = options.measure.seed
            recorded = _decide_again(sources, n if simulate else None, seed)
        elif devices.find_device(options.machine.device) is None:
            raise ToolMissing(
                "no GPU found: tuning measures on one; --from decides recorded tunings"
            )
        else:
            recorded = repeat.tune_many(options, n, progress, to=to)
    by_workload: dict[str, list[Tuning]] = {}
    for tuning in recorded.tunings:
        by_workload.setdefault(tuning.workload, []).append(tuning)
    found = {key: agreement(tunings) for key, tunings in by_workload.items()}
    rows = [_flat(tuning) for tuning in recorded.tunings]
    if output.as_json:
        write_document(
            BenchDecisions,
            whose=recorded.whose,
            workloads=tuple(found.values()),
            tunings=rows,
        )
    if output.csv is not None:
        write_table_csv([*rows[0]] if rows else [], [[*row.values()] for row in rows], output.csv)
    if output.is_table:
        for text in _summary(found, by_workload):
            say(text)
        say(f"Measurements: {recorded.whose}.")


def _decide_again(sources: Sequence[Path], simulated_n: int | None, seed: int) -> RecordedTunings:
    files = [load(path) for path in sources]
    tunings = [t for file in files for t in file.tunings]
    whose = "; ".join(dict.fromkeys(file.whose for file in files))
    if simulated_n is None:
        return RecordedTunings(tuple(t.decided() for t in tunings), f"{whose}; decided again")
    made = [
        t
        for key in dict.fromkeys(t.workload for t in tunings)
        for t in simulated([t for t in tunings if t.workload == key], simulated_n, seed)
    ]
    return RecordedTunings(tuple(made), f"{whose}; simulated from {len(tunings)} tunings")


def _summary(
    found: Mapping[str, Agreement], by_workload: Mapping[str, Sequence[Tuning]]
) -> list[str]:
    headings = ["workload", "tunings", "flips", "by lowest median", "by lowest sample"]
    headings += ["worst / default", "confirmed", "slower"]
    rows = [
        [
            *(result.workload, str(result.tunings), str(result.flips)),
            *(str(result.flips_lowest_median), str(result.flips_lowest_sample)),
            *(_ratio(result.worst), _ratio(result.worst_confirmed), str(result.slower)),
        ]
        for result in found.values()
    ]
    texts = [fitted_table(headings, rows, {"workload"})]
    for key, result in found.items():
        choices = "; ".join(f"{n} times {c.partition(':')[2]}" for c, n in result.choices)
        n_lowest = len({t.lowest_median for t in by_workload[key]})
        texts.append(f"{key}: {choices}. Lowest medians were of {n_lowest}.")
    agreed = sum(result.flips == 0 for result in found.values())
    texts.append(
        f"The same choice in all tunings for {agreed} of {len(found)} workloads. Slower than the "
        f"default by more than {100 * MARGIN:g} %: {sum(bool(o.slower) for o in found.values())} "
        f"of {len(found)}."
    )
    return texts


def _ratio(ratio: Ratio | None) -> str:
    """Time over the default's; empty where the default was chosen or nothing was compared."""
    if ratio is None:
        return ""
    interval = ratio.interval
    return f"{ratio.value:.4f}" + (
        f" ±{(interval.high - interval.low) / 2:.4f}" if interval else ""
    )


def _flat(tuning: Tuning) -> dict[str, Any]:
    """The row of a tuning."""
    names = ("workload", "method", "seed", "chosen", "preferred", "lowest_median")
    row = {name: getattr(tuning, name) for name in (*names, "lowest_sample", "default")}
    to_default, confirmed = tuning.to_default(tuning.chosen), tuning.confirmed
    row["to_default"] = to_default.value if to_default else None
    row["confirmed"] = confirmed.value if confirmed else None
    interval = confirmed.interval if confirmed else None
    row["confirmed_low"], row["confirmed_high"] = interval or (None, None)
    return row
