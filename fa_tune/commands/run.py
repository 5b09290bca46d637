"""`fa-tune run`."""

from __future__ import annotations

import click

from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import machine_options, measure_options, workload_options
from fa_tune.commands.shared.options import json_option, option, quiet_option, wide_option
from fa_tune.commands.shared.output import say, write_json
from fa_tune.commands.shared.parameters import Kernels, WholeNumber
from fa_tune.commands.shared.progress import watching
from fa_tune.commands.views.timings import document, show_timings
from fa_tune.commands.views.verdicts import (
    all_right,
    verdict_objects,
    verdict_sentence,
    verdict_table,
)
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.options import MachineOptions, MeasureOptions, SearchOptions, WorkloadOptions
from fa_tune.tune import single

SCHEMA = "fa-tune-run-1"


@click.command("run", cls=GroupedCommand)
@click.argument("config", type=Kernels(), metavar="CONFIG")
@option("-n", "--times", "times", type=WholeNumber(1, 10_000), default=10, help="Runs.")
@workload_options("seq_lens", "seq_lens_kv", "batches", "heads", "kv_heads", "masks", "common")
@measure_options("references", "inputs", "seed")
@json_option()
@wide_option()
@machine_options("arch", "jobs", "compile_timeout_s", "device", "cache_dir")
@quiet_option()
def command(
    config: str,
    times: int,
    workloads: WorkloadOptions,
    measure: MeasureOptions,
    machine: MachineOptions,
    as_json: bool,
    wide: bool,
    quiet: bool,
) -> None:
    """Verify one config on the GPU, then run it n times beside the reference kernels.

    CONFIG is a short form, quoted for the shell; it states its own element type and head
    dimension. A config whose result is wrong is not timed: exit status 4.

    \b
    Example:
      fa-tune run -n 20 \\
          "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
    """
    options = SearchOptions(workloads=workloads, kernels=config, measure=measure, machine=machine)
    with watching(quiet) as progress:
        result, report = single.run(config, options, times, progress)
    for warning in result.warnings:
        progress.warn_once(warning)
    right = all_right(report)
    if as_json:
        times_part = (
            document(result) if result.attempts else {"whose": result.source, "timings": []}
        )
        write_json({**times_part, **verdict_objects(report), "schema": SCHEMA})
    elif report.verdicts or report.failures:
        say(verdict_table(report))
        say(verdict_sentence(report))
    if not as_json and result.attempts:
        say()
        show_timings(result, csv=None, as_json=False, limit=None, wide=wide)
    if not report.verdicts and not report.failures:
        why = "; ".join(f"{r.constraint}: {r.reason}" for _, r in report.rejected)
        raise NoUsableVariant(f"the config cannot run on this GPU: {why or 'no reason is known'}")
    if not right:
        raise NoUsableVariant(verdict_sentence(report).rstrip("."))
