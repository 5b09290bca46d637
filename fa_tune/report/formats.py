"""The output formats by name, all from the same rows: text, Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from fa_tune.core.errors import InvalidConfig, one_line, shown
from fa_tune.core.workload import DType
from fa_tune.report.tables import BEST_MARK, Table, tables_of
from fa_tune.store.table.columns import Column, columns_of
from fa_tune.store.table.rows import Row
from fa_tune.store.table.write_csv import write_report

DEFAULT_LIMIT = 20  # rows per table of text
JSON_SCHEMA = "fa-tune-report-1"


def write_text(
    rows: Iterable[Row],
    stream: TextIO,
    limit: int | None = DEFAULT_LIMIT,
    *,
    chosen: str | None = None,
) -> None:
    """One table per workload; `*` marks the fastest of ours, or the `chosen` variant by its key; at
    most `limit` rows each beside the references."""
    for i, table in enumerate(tables_of(rows, limit, chosen=chosen)):
        stream.write(shown(("\n" if i else "") + _text(table) + "\n"))


def _text(table: Table) -> str:
    headings = ["", *(column.heading for column in table.columns)]
    marked = [[BEST_MARK if i == table.best else "", *row] for i, row in enumerate(table.cells)]
    drawn = text_table(headings, marked, {c.heading for c in table.columns if not c.kind.right})
    return "\n".join(part for part in (table.title, drawn, table.rest) if part)


def text_table(headings: Sequence[str], rows: Sequence[Sequence[str]], left: set[str]) -> str:
    """A table for people; columns not in `left` align right."""
    from prettytable import PrettyTable  # late: --help draws no table

    table = PrettyTable(list(headings))
    for heading in headings:
        table.align[heading] = "l" if heading in left else "r"
    table.add_rows([[one_line(cell) for cell in row] for row in rows])
    return str(table.get_string())


def write_markdown(rows: Iterable[Row], stream: TextIO, limit: int | None = None) -> None:
    """A heading and a table per workload; the fastest of ours in bold."""
    for i, table in enumerate(tables_of(rows, limit)):
        stream.write(shown(("\n" if i else "") + _markdown(table)))


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


def write_json(rows: Iterable[Row], stream: TextIO) -> None:
    """`{"schema": …, "rows": [{"kernel": …, "duration_s": …, …}, …]}` in the order given; a row has
    `bytes_per_s` where memory may be its limit."""
    document = {"schema": JSON_SCHEMA, "rows": row_objects(list(rows))}
    stream.write(shown(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)) + "\n")


def row_objects(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as `write_json` has them."""
    columns = columns_of(rows)
    return [_object(row, columns) for row in rows]


def _object(row: Row, columns: Iterable[Column]) -> dict[str, Any]:
    values = {column.field: getattr(row, column.field) for column in columns}
    if row.bytes_per_s is not None:
        values["bytes_per_s"] = row.bytes_per_s
    if row.source:
        values["source"] = row.source
    return {name: v.name if isinstance(v, DType) else v for name, v in values.items()}


def write(rows: Iterable[Row], fmt: str, stream: TextIO, *, limit: int | None = None) -> None:
    """Write `rows` to `stream` as table, markdown, csv or json; raises InvalidConfig for another
    name.

    `limit` rows per table, references aside, in the formats for people (None: the format's own);
    csv and json always hold every row.  A file for csv is opened with `newline=""`.
    """
    match fmt:
        case "table":
            write_text(rows, stream, DEFAULT_LIMIT if limit is None else limit)
        case "markdown":
            write_markdown(rows, stream, limit)
        case "csv":
            write_report(rows, stream)
        case "json":
            write_json(rows, stream)
        case _:
            raise InvalidConfig(f"unknown format {fmt!r}; known: table, markdown, csv, json")
