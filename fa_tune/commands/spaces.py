"""`fa-tune spaces`: show, export, import."""

from __future__ import annotations

from pathlib import Path

import click

from fa_tune.commands.shared.groups import HelpfulGroup
from fa_tune.commands.shared.options import folder, option
from fa_tune.commands.shared.output import say
from fa_tune.commands.shared.parameters import WORKLOAD, NamedPath, output_file
from fa_tune.core.files import check_writable
from fa_tune.core.paths import profiles_dir
from fa_tune.core.workload import Workload
from fa_tune.lab import t4
from fa_tune.lab.replay import LEVELS
from fa_tune.lab.space_table import RecordedWorkload, find, load, recorded, save
from fa_tune.report.fitted import fitted
from fa_tune.report.wrap import terminal_width

PATH = NamedPath()
_HEADINGS = ("workload", "ran", "best", "GB/s", *(f"{100 * level:.0f} %" for level in LEVELS))


@click.group("spaces", cls=HelpfulGroup)
def command() -> None:
    """Look at recorded spaces, and exchange them with other auto-tuners.

    \b
    Examples:
      fa-tune spaces show profiles
      fa-tune spaces export profiles --to exported
      fa-tune spaces import other_T4.json --to other.space.csv.gz
    """


@command.command("show", short_help="List recorded spaces and what they hold.")
@click.argument("paths", nargs=-1, type=PATH, metavar="[PATH]…")
def show(paths: tuple[Path, ...]) -> None:
    """List recorded spaces: how many configs ran, the best time in ms, and how many reach a share
    of its speed.

    PATH is a FILE.space.csv.gz or a folder; without one, those that come with fa-tune.

    \b
    Example:
      fa-tune spaces show profiles/nvidia_h200
    """
    for path in find(paths or [profiles_dir()]):
        table = load(path)
        gpu = table.meta.device.name if table.meta.device else "unknown GPU"
        say(f"{table.name}; {gpu}")
        rows = [_cells(space) for space in recorded(table)]
        say("\n".join(fitted(_HEADINGS, rows, terminal_width(), left=("workload",), fold=True)))
        if table.left_out:
            say(f"{table.left_out} rows have a knob that was removed")
        say()


def _cells(space: RecordedWorkload) -> list[str]:
    ran = [t for t in space.times_s if t is not None]
    best, moved = space.best_s, space.best_bytes_per_s
    configs = len(space.rows)
    return [
        space.rows[0].workload,
        str(configs) if len(ran) == configs else f"{len(ran)} of {configs}",
        f"{1e3 * best:#.4g}",
        "" if moved is None else f"{moved / 1e9:.0f}",
        *(str(sum(best / t >= level for t in ran)) for level in LEVELS),
    ]


@command.command("export", short_help="Write T4 results and Kernel Tuner caches.")
@click.argument("paths", nargs=-1, required=True, type=PATH, metavar="PATH…")
@folder("--to", required=True, help="Where to write; created if necessary.")
def export(paths: tuple[Path, ...], to: Path) -> None:
    """Write every workload of recorded spaces for other auto-tuners.

    Each becomes a results file in the community's T4 format, NAME.t4.json, and a cache file for
    Kernel Tuner's simulation mode, NAME.kernel_tuner.json (`kernel_tuner.tune_cache`).

    \b
    Example:
      fa-tune spaces export profiles --to exported
    """
    check_writable(to, "--to names another place")
    for path in find(paths):
        table = load(path)
        for space in recorded(table):
            for written in t4.export(space, table.meta, to):
                say(str(written))


@command.command("import", short_help="Make a recorded space of T4 results.")
@click.argument("path", type=PATH, metavar="FILE")
@option(
    "--to",
    type=output_file(stdout=False),
    metavar="FILE",
    required=True,
    help="The recorded space to write, NAME.space.csv.gz.",
)
@option(
    "--workload",
    type=WORKLOAD,
    metavar="KEY",
    show_default="the file's name",
    help="What was measured.",
)
def import_(path: Path, to: Path, workload: Workload | None) -> None:
    """Read a results file in the T4 format, of any kernel and tuner, as a recorded space.

    \b
    Example:
      fa-tune spaces import convolution_T4.json --to convolution.space.csv.gz
    """
    table = t4.read_t4(path, workload.key if workload else path.stem)
    recorded(table)  # what cannot be searched is refused before it is written
    save(to, table.rows, table.meta)
    say(f"{len(table.rows)} configs written to {to}")
