"""The output formats by name: one file each, all from the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TextIO

from fa_tune.core.errors import InvalidConfig
from fa_tune.report.formats.json import write_json
from fa_tune.report.formats.markdown import write_markdown
from fa_tune.report.formats.text import DEFAULT_LIMIT, write_text
from fa_tune.store.table.rows import Row
from fa_tune.store.table.write_csv import write_csv


@dataclass(frozen=True)
class Format:
    """A writer, and how many rows per table it shows unless told; None = it shows all rows
    whatever the limit, being for machines."""

    write: Callable[[Iterable[Row], TextIO, int | None], None]
    default_limit: int | None = None


FORMATS: Mapping[str, Format] = {
    "table": Format(write_text, DEFAULT_LIMIT),
    "markdown": Format(write_markdown),
    "csv": Format(lambda rows, stream, _: write_csv(rows, stream)),
    "json": Format(lambda rows, stream, _: write_json(rows, stream)),
}


def write(rows: Iterable[Row], fmt: str, stream: TextIO, *, limit: int | None = None) -> None:
    """Write `rows` to `stream` in the named format; raises InvalidConfig for an unknown name.

    `limit` rows per table in the formats for people (None: the format's own); csv and json
    always hold every row.  A file for csv is opened with `newline=""`.
    """
    try:
        form = FORMATS[fmt]
    except KeyError:
        raise InvalidConfig(f"unknown format {fmt!r}; known: {', '.join(FORMATS)}") from None
    form.write(rows, stream, form.default_limit if limit is None else limit)
