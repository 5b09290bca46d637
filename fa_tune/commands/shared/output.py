"""What commands write to standard output and to files."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

import click

from fa_tune.commands.shared.parameters import STDOUT
from fa_tune.core.errors import shown
from fa_tune.core.files import save_file
from fa_tune.report.formats import write
from fa_tune.report.wrap import terminal_width, wrapped
from fa_tune.store.table.rows import Row


def say(text: str = "") -> None:
    """A line of the result."""
    click.echo(shown(text))


def tell(text: str, *, wide: bool = False, indent: str = "") -> None:
    """A sentence of the result: in lines that fit the terminal, or if `wide` in one."""
    say(text if wide else wrapped(text, terminal_width(), indent=indent))


def write_json(document: dict[str, Any]) -> None:
    """One JSON document, on standard output, in its encoding: click would take another."""
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    sys.stdout.write(f"{shown(text)}\n")


def write_rows_csv(rows: Sequence[Row], path: Path | None) -> None:
    """The rows as CSV to a file, to standard output (`-`), or nowhere (None)."""
    if path is not None:
        with writing(path) as stream:
            write(rows, "csv", stream)


def write_table_csv(headings: Sequence[str], rows: Iterable[Sequence[Any]], path: Path) -> None:
    """Any table as CSV; None becomes an empty cell."""
    with writing(path) as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(headings)
        writer.writerows(rows)


@contextmanager
def writing(path: Path) -> Iterator[TextIO]:
    """A text stream for a file, which is replaced when all is written, or, for `-`, standard
    output; raises StorageError."""
    if path == STDOUT:
        yield sys.stdout
        return
    text = io.StringIO(newline="")
    yield text
    save_file(path, text.getvalue().encode())
