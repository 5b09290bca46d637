"""Rows as plain text tables for a terminal or a log, without colours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TextIO

from fa_tune.report.tables import BEST_MARK, Table, tables
from fa_tune.store.table.rows import Row

DEFAULT_LIMIT = 20


def write_text(rows: Iterable[Row], stream: TextIO, limit: int | None = DEFAULT_LIMIT) -> None:
    """One table per workload; `*` marks the fastest of ours; at most `limit` rows each."""
    for i, table in enumerate(tables(rows, limit)):
        stream.write(("\n" if i else "") + _text(table) + "\n")


def _text(table: Table) -> str:
    from prettytable import PrettyTable

    pretty = PrettyTable(["", *(column.heading for column in table.columns)])
    for column in table.columns:
        pretty.align[column.heading] = "r" if column.kind.right else "l"
    for i, cells in enumerate(table.cells):
        pretty.add_row([BEST_MARK if i == table.best else "", *cells])
    return "\n".join(part for part in (table.title, pretty.get_string(), table.rest) if part)
