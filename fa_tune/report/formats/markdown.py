"""Rows as Markdown tables, for a README or an issue."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from fa_tune.report.tables import Table, tables
from fa_tune.store.table.rows import Row


def write_markdown(rows: Iterable[Row], stream: TextIO, limit: int | None = None) -> None:
    """A heading and a table per workload; the fastest of ours in bold."""
    for i, table in enumerate(tables(rows, limit)):
        stream.write(("\n" if i else "") + _markdown(table))


def _markdown(table: Table) -> str:
    lines = [f"### {_escaped(table.title)}", ""]
    lines.append(_line(column.heading for column in table.columns))
    lines.append(_line("---:" if column.kind.right else "---" for column in table.columns))
    for i, cells in enumerate(table.cells):
        escaped = [_escaped(cell) for cell in cells]
        lines.append(_line(f"**{c}**" if c and i == table.best else c for c in escaped))
    if table.rest:
        lines += ["", table.rest]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    """Text that shows as it is: no cell ends, emphasis or tags of its own."""
    for character in "\\|*_<>`":
        text = text.replace(character, "\\" + character)
    return text
