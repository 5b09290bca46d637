"""`fa-tune capture`."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from fa_tune.commands.shared.aside import aside
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.options import option
from fa_tune.commands.shared.parameters import WholeNumber, output_file
from fa_tune.core.units import format_seconds
from fa_tune.store.capture.schema import Capture, Usage
from fa_tune.tune import capture

SHOWN = 10  # of the costliest
HEADINGS = ("share", "runs", "each", "problem", "mask", "served by", "why")


@click.command("capture", context_settings={"allow_interspersed_args": False})
@option(
    "--out",
    type=output_file(stdout=False),
    default="capture.json",
    metavar="FILE",
    help="The file to write.",
)
@option(
    "--keep-inputs",
    type=WholeNumber(0, 1000),
    default=0,
    metavar="N",
    help="Save Q, K and V of N dense problems in the folder FILE.inputs, for --inputs file:PATH.",
)
@click.argument("command_line", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD…")
def command(out: Path, keep_inputs: int, command_line: tuple[str, ...]) -> None:
    """Run a program and write the attention problems that it ran, with what each cost and what
    served it.

    The program keeps its output and exit status, and may have several processes. Captured are
    torch's attention, FlashAttention's functions, flex_attention and ours, in eager mode, compiled
    graphs and CUDA graphs. docs/capture.md describes the file, which
    `search --captured` reads.

    \b
    Examples:
      fa-tune capture -- python train.py --steps 20
      fa-tune capture --out vit.json -- torchrun --nproc-per-node 2 vit.py
    """
    found = capture.run(command_line, out, keep_inputs=keep_inputs)
    _show(found, out)
    status = found.exit_status or 0
    click.get_current_context().exit(128 - status if status < 0 else status)


def _show(found: Capture, out: Path) -> None:
    """On stderr: standard output is the program's."""
    if (status := found.exit_status or 0) < 0:
        aside(f"The program was ended by {signal.Signals(-status).name}.")
    for note in found.notes:
        aside(f"warning: {note}")
    if found.usages:
        rows = [_row(usage, found.attention_s) for usage in found.usages[:SHOWN]]
        click.echo(fitted_table(HEADINGS, rows, {*HEADINGS[3:]}), err=True)
    more = max(0, len(found.usages) - SHOWN)
    aside(
        f"{format_seconds(found.attention_s)} of attention in {format_seconds(found.wall_s)}; "
        f"{len(found.usages)} problems in {out}{f', {more} not shown' if more else ''}."
    )


def _row(usage: Usage, attention_s: float) -> tuple[str, ...]:
    p = usage.problem
    sizes = f"b{p.batch} h{p.heads}/{p.kv_heads} q{p.seq_len_q} k{p.seq_len_kv} d{p.d_head}"
    masks = usage.mask if p.mask != "tensor" else f"tensor: {usage.mask}"
    return (
        f"{100 * usage.time_s / attention_s:.1f} %" if attention_s else "",
        str(usage.runs),
        "" if usage.call_s is None else format_seconds(usage.call_s),
        f"{p.op} {p.kind} {sizes} {p.dtype}",
        masks,
        " ".join(filter(None, (usage.served.by, usage.served.entry))),
        usage.served.why,
    )
