"""`fa-tune verify`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import INPUTS, flag, inputs_list_option
from fa_tune.commands.shared.progress import watching
from fa_tune.commands.views.verdicts import Verified, refuse_wrong, show_verdicts, verified
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.inputs import InputSpec
from fa_tune.core.model import is_users, user_place
from fa_tune.core.options import SearchOptions
from fa_tune.tune import single


@dataclass(frozen=True, kw_only=True)
class Verify(Verified):
    """`fa-tune verify --json`"""

    schema: Literal["fa-tune-verify-1"]


@click.command("verify", cls=GroupedCommand)
@flag(
    "--thorough",
    help="Also try scales from 1e-6 to 1e6, peaked scores and 131072 keys: seconds per kernel.",
)
@inputs_list_option(
    default=[],
    show_default="only its own",
    help="Also try every case with these, beside the verification's own awkward inputs; all: the "
    f"built-in ones. {INPUTS}",
)
@shared_options(
    *("kernels", "families", "d_heads", "masks", "common", "users", "as_json"),
    *("arch", "jobs", "compile_timeout_s", "device", "devices", "ray", "cache_dir", "quiet"),
)
def command(
    options: SearchOptions,
    inputs: tuple[InputSpec, ...],
    thorough: bool,
    output: Output,
    quiet: bool,
) -> None:
    """Run configs on the GPU and compare their results with attention in fp64.

    A result is right if its largest error is at most twice that of the same computation in the
    kernel's own precision, plus one rounding, and its root mean square error at most 1.2 times
    that. Several shapes and inputs are tried, awkward ones included, with every mask that --mask
    names, causal ones in both alignments. With a window, a sink, a soft cap, ALiBi, a score hook or
    packed lengths, kernels are compiled for these, and tried with other windows and caps as well
    as with those given. A kernel that crashes ends only its own process. Ctrl-C ends with the
    verdicts that are finished. Exit status 4 if any config is wrong or fails.

    \b
    Examples:
      fa-tune verify
      fa-tune verify --kernels prog-all --d-head 64,128
      fa-tune verify --mask full,causal --lse --thorough
      fa-tune verify --mask causal --window-left 127 --sink --lengths equal
      fa-tune verify --inputs all
    """
    with watching(quiet) as progress:
        report = single.verify(
            *(options.kernels, options.workloads, options.machine, progress),
            names=options.families,
            thorough=thorough,
            inputs=inputs,
            users=[user_place(s) for s in options.measure.references if is_users(s)],
        )
    for variant, why in report.rejected:
        progress.tell(f"not tried: {variant.config}: {why.constraint}: {why.reason}")
    if output.as_json:
        write_document(Verify, **verified(report))
    else:
        show_verdicts(report)
    if report.interrupted:
        raise KeyboardInterrupt
    if not report.verdicts and not report.failures:
        raise NoUsableVariant("no config can run on this GPU, so none was verified")
    refuse_wrong(report)
