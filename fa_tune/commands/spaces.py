"""`fa-tune spaces`: show, export, import."""

from __future__ import annotations

from pathlib import Path

import click

from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.groups import HelpfulGroup
from fa_tune.commands.shared.options import folder, option
from fa_tune.commands.shared.output import say
from fa_tune.commands.shared.parameters import WORKLOAD, NamedPath
from fa_tune.core.paths import profiles_dir
from fa_tune.core.workload import Workload
from fa_tune.lab import t4
from fa_tune.lab.replay import LEVELS
from fa_tune.lab.space_table import find, load, recorded, save

PATH = NamedPath(readable=False)


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
    """List recorded spaces: configs, outcomes, the best time, and how many come near it.

    PATH is a FILE.space.csv.gz or a folder; without one, those that come with fa-tune.

    \b
    Example:
      fa-tune spaces show profiles/nvidia_h200
    """
    rows, left_out = [], []
    for path in find(paths or [profiles_dir()]):
        table = load(path)
        if table.left_out:
            left_out.append(f"{table.name}: {table.left_out} rows have a knob that was removed")
        gpu = table.meta.device.name if table.meta.device else "unknown"
        for space in recorded(table):
            ran = [t for t in space.times_s if t is not None]
            best, moved = space.best_s, space.best_bytes_per_s
            near = [str(sum(best / t >= level for t in ran)) for level in LEVELS]
            workload = space.rows[0].workload
            rate = "" if moved is None else f"{moved / 1e9:.0f}"
            counts = [str(len(space.rows)), str(len(ran))]
            rows.append([table.name, gpu, workload, *counts, f"{1e3 * best:.4g}", rate, *near])
    names = ["space", "GPU", "workload", "configs", "ran", "best (ms)"]
    names += ["GB/s", *(f"at {100 * level:.0f} %" for level in LEVELS)]
    if not any(row[6] for row in rows):  # nowhere is memory the limit
        names, *rows = ([*cells[:6], *cells[7:]] for cells in (names, *rows))
    say(fitted_table(names, rows, {"space", "GPU", "workload"}))
    for line in left_out:
        say(line)


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
    for path in find(paths):
        table = load(path)
        for space in recorded(table):
            for written in t4.export(space, table.meta, to):
                say(str(written))


@command.command("import", short_help="Make a recorded space of T4 results.")
@click.argument("path", type=PATH, metavar="FILE")
@option(
    "--to",
    type=NamedPath(dir_okay=False),
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
