"""`fa-tune record-space`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from fa_tune import families
from fa_tune.commands.shared.axes import configs_of
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import shared_options
from fa_tune.commands.shared.options import option
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.shared.parameters import WholeNumber, output_file
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.options import SearchOptions
from fa_tune.lab import record_space
from fa_tune.lab.space_table import SUFFIX


@click.command("record-space", cls=GroupedCommand)
@option(
    "--at-most",
    type=WholeNumber(1, 1_000_000),
    show_default="all",
    help="Record the default and a random sample of the configs, the same for the same seed.",
)
@option(
    "--to",
    type=output_file(stdout=False),
    metavar="FILE",
    required=True,
    help="The recorded space to write, NAME.space.csv.gz; NAME.space.json goes beside it.",
)
@shared_options(
    *("workloads", "kernels", "families", "axes"),
    *("profiler", "runs", "clock_control", "inputs", "seed", "resume"),
    *("arch", "jobs", "compile_timeout_s", "device", "devices", "ray", "ncu", "recordings"),
    *("cache_dir", "quiet"),
)
def command(options: SearchOptions, at_most: int | None, to: Path, quiet: bool) -> None:
    """Measure every config of a set, or of axes of your own, and keep the full table.

    The table has times, failures, knobs, and what the compiler reports of each kernel, for
    `fa-tune bench-search`. Configs are measured in groups that each include the default config;
    finished groups survive an interruption. Without a GPU the table is made from recorded
    measurements.

    \b
    Examples:
      fa-tune record-space --family sm80 --dtype fp16 --to tune.space.csv.gz
      fa-tune record-space --axis B_r=64,128 --axis n_warps=4,8 \\
          --to wide.space.csv.gz
    """
    if not to.name.endswith(SUFFIX):  # before hours of measuring rather than after
        raise InvalidConfig(f"{to}: a recorded space's name ends in {SUFFIX}")
    configs = configs_of(options, options.workloads.workloads())
    found = sorted({families.of(config).name for config in configs})
    if len(found) > 1:
        several = " or ".join(f"--family {name}" for name in found)
        raise click.UsageError(f"a space has configs of one family: give {several}")
    options = replace(options, axes=())
    if at_most is not None:  # the sample is drawn by the seed, whoever measures
        typed = options.measure.typed - {"seed"}
        options = replace(options, measure=replace(options.measure, typed=typed))
    with watching(quiet) as progress:
        made = record_space.record_space(configs, options, to, progress, at_most=at_most)
    ran = sum(bool(row.samples_s) for row in made.rows)
    for key in dict.fromkeys(row.workload for row in made.rows):
        rows = [row for row in made.rows if row.workload == key]
        n_ran = sum(bool(row.samples_s) for row in rows)
        say(f"{key}: {len(rows)} config{'s' if rows[1:] else ''}, {n_ran} ran.")
    tell(f"{ran} of {len(made.rows)} rows have a time; {made.meta.note}.")
    tell(f"Kept in {to}. Measurements: {made.source}.")
