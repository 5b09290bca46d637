"""`fa-tune record-space`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from fa_tune import families
from fa_tune.commands.shared.axes import device_limits, expanded
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import machine_options, measure_options, workload_options
from fa_tune.commands.shared.options import (
    axis_option,
    family_option,
    kernels_option,
    option,
    quiet_option,
)
from fa_tune.commands.shared.output import say
from fa_tune.commands.shared.parameters import NamedPath, WholeNumber
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.options import MachineOptions, MeasureOptions, SearchOptions, WorkloadOptions
from fa_tune.families.selection import choose_configs
from fa_tune.lab import record_space
from fa_tune.lab.space_table import SUFFIX
from fa_tune.report.wrap import terminal_width, wrapped
from fa_tune.tune.candidates import choose_families


@click.command("record-space", cls=GroupedCommand)
@workload_options()
@kernels_option()
@family_option()
@axis_option()
@option(
    "--at-most",
    "at_most",
    type=WholeNumber(1, 1_000_000),
    show_default="all",
    help="Record the default and a random sample of the configs, the same for the same seed.",
)
@option(
    "--to",
    "to",
    type=NamedPath(dir_okay=False),
    metavar="FILE",
    required=True,
    help="The recorded space to write, NAME.space.csv.gz; NAME.space.json goes beside it.",
)
@measure_options("profiler", "runs", "clock_control", "inputs", "seed")
@option(
    "--resume/--fresh",
    "resume",
    default=True,
    help="Take finished measurements from the journal, or measure everything again.",
)
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
    at_most: int | None,
    to: Path,
    measure: MeasureOptions,
    resume: bool,
    machine: MachineOptions,
    quiet: bool,
) -> None:
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
    chosen = choose_families(names, device_limits(machine), workloads=workloads.workloads())
    grid = workloads
    if axes:
        configs = expanded(axes, kernels, grid.dtypes, grid.d_heads, chosen, grid.d_head_v)
    else:
        configs = choose_configs(
            kernels,
            grid.dtypes,
            grid.d_heads,
            chosen,
            named=bool(names),
            d_head_v=grid.d_head_v,
        )
    found = sorted({families.of(config).name for config in configs})
    if len(found) > 1:
        several = " or ".join(f"--family {name}" for name in found)
        raise click.UsageError(f"a space has configs of one family: give {several}")
    if at_most is not None:  # the sample is drawn by the seed, whoever measures
        measure = replace(measure, typed=measure.typed - {"seed"})
    options = SearchOptions(
        workloads=grid,
        kernels=kernels,
        families=names,
        measure=measure,
        machine=machine,
        resume=resume,
    )
    with watching(quiet) as progress:
        made = record_space.record_space(configs, options, to, progress, at_most=at_most)
    ran = sum(bool(row.samples_s) for row in made.rows)
    for key in dict.fromkeys(row.workload for row in made.rows):
        rows = [row for row in made.rows if row.workload == key]
        n_ran = sum(bool(row.samples_s) for row in rows)
        say(f"{key}: {len(rows)} config{'s' if rows[1:] else ''}, {n_ran} ran.")
    width = terminal_width()
    say(wrapped(f"{ran} of {len(made.rows)} rows have a time; {made.meta.note}.", width))
    say(wrapped(f"Kept in {to}. Measurements: {made.source}.", width))
