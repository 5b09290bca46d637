"""Rows as CSV: every column under its heading, numbers in full, a missing value empty."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from fa_tune.store.table.columns import COLUMNS, DERIVED_COLUMNS, Column, columns_of
from fa_tune.store.table.rows import Row

# The csv module leaves a lone carriage return unquoted in some releases, which splits a row.
_NEEDS_QUOTES = re.compile(r'[",\r\n]|^\s|\s$')


def write_csv(rows: Iterable[Row], stream: TextIO, columns: Sequence[Column] = COLUMNS) -> None:
    """The heading line, then one line per row in the order given; see `read_csv`."""
    rows = list(rows)
    columns = columns_of(rows, columns)
    stream.write(_line(column.heading for column in columns))
    for row in rows:
        stream.write(_line(column.cell(row) for column in columns))


def write_report(rows: Iterable[Row], stream: TextIO) -> None:
    """The same with what follows from the measurements, for readers."""
    write_csv(rows, stream, COLUMNS + DERIVED_COLUMNS)


def _line(cells: Iterable[str]) -> str:
    return ",".join(map(_quoted, cells)) + "\n"


def _quoted(cell: str) -> str:
    return '"' + cell.replace('"', '""') + '"' if _NEEDS_QUOTES.search(cell) else cell
