"""`fa-tune bench`."""

from __future__ import annotations

import click

from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import INPUTS, folder, inputs_list_option
from fa_tune.commands.shared.progress import watching
from fa_tune.commands.views.timings import show_timings
from fa_tune.commands.views.verdicts import check_users
from fa_tune.core.inputs import DEFAULT, InputSpec
from fa_tune.core.options import SearchOptions
from fa_tune.tune import single
from fa_tune.tune.session import ready_workers


@click.command("bench", cls=GroupedCommand)
@inputs_list_option(
    default=[str(DEFAULT)],
    show_default=str(DEFAULT),
    help=f"What Q, K and V hold; several give a table each, all those that are built in. {INPUTS}",
)
@folder("--record", help="Keep the measurements as a recording in DIR.")
@shared_options(
    *("workloads", "kernels", "families", "runs", "references", "users", "regime", "seed"),
    *("csv", "as_json", "limit", "wide"),
    *("arch", "jobs", "compile_timeout_s", "device", "cache_dir", "quiet"),
)
def command(
    options: SearchOptions, inputs: tuple[InputSpec, ...], output: Output, quiet: bool
) -> None:
    """Time kernels with CUDA events: mean, median, minimum, maximum, standard deviation.

    Every launch starts with a cold L2 cache, and the kernels take turns, so that a drifting clock
    affects all of them. Needs a GPU, but not Nsight Compute. TFLOP/s count 4·s²·d over the median,
    of a backward pass 10·s²·d. Nothing is decided or kept; `fa-tune search` does that.

    \b
    Examples:
      fa-tune bench --kernels prog --dtype fp16 --seq-lens 4096
      fa-tune bench --kernels 64,32 --runs 50 --json
      fa-tune bench --inputs normal,peaked:3,file:qkv.safetensors
      fa-tune bench --regime sustained --family sm90
      fa-tune bench --d-head 64 --mask causal --window-left 127 --sink --ref none
      fa-tune bench --op backward --ref fa2,cudnn,fa3,sdpa
    """
    with watching(quiet) as progress, ready_workers(options.machine):
        result = single.bench(options, progress, inputs)
    progress.tell(result.source, result.warnings)
    show_timings(result, output)
    check_users(result.attempts)
