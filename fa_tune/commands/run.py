"""`fa-tune run`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import click

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import option
from fa_tune.commands.shared.output import say
from fa_tune.commands.shared.parameters import KERNELS, WholeNumber
from fa_tune.commands.shared.progress import watching
from fa_tune.commands.views.timings import Timed, show_timings, timed
from fa_tune.commands.views.verdicts import Verified, refuse_wrong, show_verdicts, verified
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.options import SearchOptions
from fa_tune.tune import single


@dataclass(frozen=True, kw_only=True)
class Run(Verified, Timed):
    """`fa-tune run --json`"""

    schema: Literal["fa-tune-run-1"]


@click.command("run", cls=GroupedCommand)
@click.argument("config", type=KERNELS, metavar="CONFIG")
@option("-n", "--times", type=WholeNumber(1, 10_000), default=10, help="Runs.")
@shared_options(
    *("seq_lens", "seq_lens_kv", "batches", "heads", "kv_heads", "masks", "common"),
    *("references", "inputs", "seed", "as_json", "wide"),
    *("arch", "jobs", "compile_timeout_s", "device", "cache_dir", "quiet"),
)
def command(config: str, times: int, options: SearchOptions, output: Output, quiet: bool) -> None:
    """Verify one config on the GPU, then run it n times beside the reference kernels.

    CONFIG is a short form, quoted for the shell; it states its own element type and head
    dimension. A config whose result is wrong is not timed: exit status 4.

    \b
    Example:
      fa-tune run -n 20 \\
          "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
    """
    options = replace(options, kernels=config)
    with watching(quiet) as progress:
        result, report = single.run(config, options, times, progress)
    progress.tell(warnings=result.warnings)
    if output.as_json:
        write_document(Run, **timed(result), **verified(report))
    else:
        show_verdicts(report)
        if result.attempts:
            say()
            show_timings(result, output)
    if not report.verdicts and not report.failures:
        why = "; ".join(f"{r.constraint}: {r.reason}" for _, r in report.rejected)
        raise NoUsableVariant(f"the config cannot run on this GPU: {why or 'no reason is known'}")
    refuse_wrong(report)
