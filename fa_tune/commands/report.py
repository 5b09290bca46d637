"""`fa-tune report`."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import click

from fa_tune.commands.shared.documents import Row as RowObject
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import (
    COUNT,
    D_HEAD,
    LENGTH,
    field_option,
    gathered,
    mask_options,
    option,
    refuse_same_file,
    several,
)
from fa_tune.commands.shared.output import say
from fa_tune.commands.shared.parameters import DTYPE, STDOUT, NamedPath
from fa_tune.commands.shared.progress import PlainProgress
from fa_tune.commands.views.row_table import FITTED_LIMIT, show_rows
from fa_tune.core.errors import NoUsableVariant, StorageError
from fa_tune.core.files import storage_errors
from fa_tune.core.workload import FIELDS, OPTIONAL
from fa_tune.core.workload_parts import PARTS
from fa_tune.profile import profile_json
from fa_tune.report.formats import write
from fa_tune.report.load import load_report_source, parse_report_source
from fa_tune.report.page.headline import NEEDED, conditions
from fa_tune.report.page.render import write_page
from fa_tune.report.page.source import FACTS, Source, profiled_source, source_of
from fa_tune.store.table.partial_workload import PartialWorkload
from fa_tune.store.table.rows import Row, grouped

STDIN = STDOUT  # the same `-`
FORMATS = {"text": "table", "markdown": "markdown", "csv": "csv", "json": "json"}
PARQUET = "parquet"

# Name on the command line -> row field and whether large values come first.
SORTS = {
    "time": ("duration_s", False),
    "median": ("median_s", False),
    "kernel": ("kernel", False),
    "registers": ("registers", False),
    "cycles": ("cycles", False),
    "l2": ("l2_hit_percent", True),
    "tflops": ("tflops", True),
}

Note = Callable[[str], None]
STATED = tuple(name for name in OPTIONAL if FIELDS[name].help)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """`fa-tune report --format json`"""

    schema: Literal["fa-tune-report-1"]
    rows: tuple[RowObject, ...]


@click.command("report", cls=GroupedCommand)
@click.argument(
    "paths",
    nargs=-1,
    required=True,
    metavar="PATH…",
    type=NamedPath(allow_dash=True),
)
@option(
    "--format",
    "-f",
    "form",
    type=click.Choice((*FORMATS, PARQUET)),
    default="text",
    help="What to write: text for a terminal, markdown for a document, csv, json or parquet for "
    "programs; parquet is binary and goes into a pipe or a file.",
)
@option(
    "--against",
    type=NamedPath(),
    metavar="PATH",
    help="With --html: another run, whose times the page compares with these.",
)
@shared_options(
    "html", "limit", "wide", limit=f"{FITTED_LIMIT} beside the references; 20 with --wide"
)
@option(
    "--sort",
    type=click.Choice(tuple(SORTS)),
    show_default="references first, then ours by time",
    help="Order of the rows in each table; rows without the value come last.",
)
@option("--seq-len", type=LENGTH, help="Sequence length of the queries.")
@option("--seq-len-kv", type=LENGTH, help="The keys' length, if it differs.")
@option("--d-head", type=D_HEAD, help="Head dimension.")
@option("--dtype", type=DTYPE, metavar="fp16|bf16", help="Element type.")
@option("--batch", type=COUNT, help="Batch size.")
@option("--heads", type=COUNT, help="Heads.")
@option("--kv-heads", type=COUNT, help="The keys' heads, if they differ.")
@mask_options("Mask of the kernels", default=None, show_default="as the kernels' names say")
@several(field_option(name, default=None) for name in STATED)
@option(
    "--decimal",
    type=click.Choice((".", ",")),
    show_default="detected from the file",
    help="Decimal separator, where ncu's numbers are ambiguous.",
)
@gathered("given", PartialWorkload, PARTS)
def command(
    paths: tuple[Path, ...],
    given: PartialWorkload,
    form: str,
    html: Path | None,
    against: Path | None,
    output: Output,
    sort: str | None,
    decimal: str | None,
) -> None:
    """Show measurements as tables, with rates and the ratio to FlashAttention 2.

    A PATH is a CSV file of fa-tune, or one of Nsight Compute's (`ncu --csv`, details or raw
    page) with any kernels in it, or a folder of such files; `-` is standard input. Of a file of
    fa-tune the workload options select rows. Parts of the workload that a file does not state
    are inferred from kernel names and grids; options say what these leave open. Notes go to
    standard error. For --html, a PATH may also be what `fa-tune profile --json` wrote, whose
    counters tell the winner from the runner-up.

    \b
    Examples:
      fa-tune report profiles/autotune.csv --limit 5
      ncu --csv --page raw --import kernels.ncu-rep | \\
          fa-tune report - --format markdown
      fa-tune report profiles/nvidia_h200/fast_ncu.csv --html results.html
    """
    if against is not None and html is None:
        raise click.UsageError("--against is a part of the page: give --html FILE as well")
    for path in (*paths, against):
        refuse_same_file(("PATH" if path in paths else "--against", path), ("--html", html))
    if form == PARQUET and sys.stdout.isatty():
        raise click.UsageError("parquet is binary: write it to a file, as in > results.parquet")
    said = PlainProgress()

    def source(path: Path, *, several: bool = False) -> Source:
        if html is not None and path.name.endswith(".json") and path.is_file():
            return profiled_source(path, profile_json.load(path))
        rows = _named(_load(path, given, decimal, said.note), path, several=several)
        return source_of(path, rows)

    several = len(set(paths)) > 1
    sources = [source(path, several=several) for path in dict.fromkeys(paths)]
    rows = [row for found in sources for row in found.rows]
    if not rows:
        of = "" if given == PartialWorkload() else " of the workload that the options name"
        raise NoUsableVariant(f"no measurements{of} in {', '.join(map(str, paths))}")
    shown = _sorted(rows, *SORTS[sort]) if sort is not None else rows
    if html is not None:
        others = [source(against)] if against is not None else []
        write_page(html, sources, others)
        said.note(f"The page is {html}.")
    if form == PARQUET:
        from fa_tune.report.frames import parquet  # takes long to load

        sys.stdout.buffer.write(parquet(shown))
        return
    if form in ("text", "markdown"):
        known, missing = conditions(sources)
        facts = "; ".join(f"{FACTS[name]} {known[name]}" for name in NEEDED if name in known)
        if facts:
            say(f"{facts}\n")
        if missing:
            said.note(missing)
    if form == "text":
        show_rows(shown, output.limit, wide=output.wide, summed_up=True)
    else:
        write(shown, FORMATS[form], sys.stdout, limit=output.limit)


def _load(path: Path, given: PartialWorkload, decimal: str | None, note: Note) -> list[Row]:
    if path != STDIN:
        return load_report_source(path, given, decimal=decimal, on_note=note)
    if sys.stdin is None:
        raise StorageError("standard input is closed")
    with storage_errors("cannot read standard input"):
        data = sys.stdin.buffer.read()
    return parse_report_source(data, Path("standard input"), given, decimal=decimal, on_note=note)


def _named(rows: Sequence[Row], path: Path, *, several: bool) -> list[Row]:
    """Rows that say which file they are from, if there are several: files are never ranked
    together."""
    if not several:
        return list(rows)
    name = "standard input" if path == STDIN else str(path)
    return [
        dataclasses.replace(row, source=f"{name}/{row.source}" if row.source else name)
        for row in rows
    ]


def _sorted(rows: Sequence[Row], field: str, descending: bool) -> list[Row]:
    """By a field, within each table: the tables stay where they are."""
    out: list[Row] = []
    for members in grouped(rows).values():
        known = [row for row in members if getattr(row, field) is not None]
        known.sort(key=lambda row: getattr(row, field), reverse=descending)
        out += known + [row for row in members if getattr(row, field) is None]
    return out
