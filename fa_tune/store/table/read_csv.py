"""Reads our CSV, and the classic one that has only the first eleven columns, back into rows."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.model import REFERENCE_FAMILY, Outcome
from fa_tune.core.workload_parts import PARTS
from fa_tune.libraries import LABELS
from fa_tune.store.table.checks import contradiction, named
from fa_tune.store.table.columns import BY_HEADING, DERIVED_COLUMNS, TEXT, Column, unguarded
from fa_tune.store.table.kernel_names import identify
from fa_tune.store.table.partial_workload import PartialWorkload, adopted
from fa_tune.store.table.rows import Row

NAME, DURATION, FAMILY = (BY_HEADING[h] for h in ("Kernel Name", "Dur (ms)", "family"))
KINDS = tuple(BY_HEADING[h] for h in ("dtype", "d_head"))

# What tables call the reference kernels, in lower case.
_LABELS = {label.lower(): label for label in LABELS.values()} | {
    "v2": LABELS["fa2"],
    "v3": LABELS["fa3"],
    "reference": LABELS["fa2"],
}


def text_of(raw: bytes, path: str | Path) -> str:
    """A file's bytes as text; raises ProfileFormatError for what is not UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ProfileFormatError(f"{path} is not UTF-8 text") from None


def looks_like_ours(text: str) -> bool:
    """Whether the first line is a heading with a kernel's name and a duration in ms."""
    first = re.split(r"[\r\n]", text.lstrip("\ufeff\r\n"), maxsplit=1)[0]
    try:
        headings = {cell.strip() for row in csv.reader([first]) for cell in row}
    except csv.Error:
        return False
    return {NAME.heading, DURATION.heading} <= headings


def parse_rows(
    text: str,
    where: str,
    *,
    on_note: Callable[[str], None] | None = None,
    only: Collection[tuple[str, ...]] = (),
) -> list[Row]:
    """The rows of a CSV of ours or of the classic form, as they stand in it; `where` is the file's
    name in messages.

    Columns are found by heading, in any order; `Kernel Name` and `Dur (ms)` must be there.
    Without a family column, family, dtype and mask come from the kernel's name.  `on_note`
    gets a line for each oddity that was let pass.  `only`: rows with one of these in the columns
    `KINDS`, the others unread.  Raises ProfileFormatError with file, line and column if a cell is
    not what its column holds, and with file and line for a row that contradicts itself or is there
    twice.
    """
    reader = _Reader(where, on_note or (lambda _: None), only)
    rows = list(reader.checked(reader.rows(text.removeprefix("\ufeff"))))
    if not text.endswith("\n"):
        reader.note("no newline at the end: the last line may have been cut")
    return rows if reader.has_family else _classic(rows)


@dataclass
class _Reader:
    """One file being read; the header decides how its lines are."""

    where: str
    on_note: Callable[[str], None]
    only: Collection[tuple[str, ...]] = ()
    has_family: bool = False

    def note(self, text: str) -> None:
        self.on_note(f"{self.where}: {text}")

    def fail(self, line: int, text: str) -> ProfileFormatError:
        return ProfileFormatError(f"{self.where}, line {line}: {text}")

    def checked(self, rows: Iterable[tuple[int, Row]]) -> Iterator[Row]:
        """The rows, each of which may be true; refuses the first that cannot."""
        seen: dict[tuple[object, ...], int] = {}
        for line, row in rows:
            if wrong := contradiction(row):
                raise self.fail(line, named(row, wrong))
            # Only of a whole workload is it known that two rows are of the same problem.
            if row.family and not row.missing and row.outcome is Outcome.OK:
                parts = (getattr(row, part) for part in PARTS)
                before = seen.setdefault((row.kernel, row.method, row.inputs, *parts), line)
                if before != line:
                    raise self.fail(line, named(row, f"line {before} has it already"))
            yield row

    def rows(self, text: str) -> Iterator[tuple[int, Row]]:
        lines = self.lines(text)
        header = next(lines, None)
        if header is None:
            raise ProfileFormatError(f"{self.where} is empty; expected a CSV with a heading line")
        width = len(header[1])
        columns = self.columns(*header)
        known: list[dict[str, Any]] = [{} for _ in columns]  # of each column the cells so far
        kinds = [columns.index(column) for column in KINDS if self.only and column in columns]
        for line, cells in lines:
            if len(cells) != width:
                text = f"{len(cells)} cells where the heading has {width}"
                if len(cells) < width:
                    last = header[1][len(cells) - 1]
                    text += f"; it ends in column {last!r}, so the file may be cut"
                raise self.fail(line, text)
            if kinds and tuple(cells[i] for i in kinds) not in self.only:
                continue
            yield line, self.row(line, columns, cells, known)

    def lines(self, text: str) -> Iterator[tuple[int, list[str]]]:
        """(number of its first line, cells) of each record that is not blank."""
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        start = 1
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise self.fail(start, f"not CSV ({error}); the file may be cut") from None
            if any(cell.strip() for cell in cells):
                yield start, cells
            start = reader.line_num + 1

    def columns(self, line: int, header: Sequence[str]) -> list[Column | None]:
        """The column of each heading; unknown ones are passed over with a note."""
        headings = [heading.strip() for heading in header]
        for heading in headings:
            if heading and headings.count(heading) > 1:
                raise self.fail(line, f"column {heading!r} appears twice")
        for needed in (NAME.heading, DURATION.heading):
            if needed not in headings:
                raise self.fail(line, f"no column {needed!r}; this is not a report of fa-tune")
        derived = {column.heading for column in DERIVED_COLUMNS}
        unknown = [h for h in headings if h not in BY_HEADING and h not in derived]
        if unknown:
            self.note(f"unknown columns ignored: {', '.join(map(repr, unknown))}")
        self.has_family = FAMILY.heading in headings
        return [BY_HEADING.get(heading) for heading in headings]

    def row(
        self,
        line: int,
        columns: Sequence[Column | None],
        cells: Sequence[str],
        known: Sequence[dict[str, Any]],
    ) -> Row:
        values: dict[str, Any] = {}
        for column, cell, before in zip(columns, cells, known, strict=True):
            if column is None or not cell:
                continue
            value = before.get(cell)
            if value is None:
                value = before[cell] = self.value(line, column, cell)
            if value is not None:
                values[column.field] = value
        if not values.get(NAME.field):
            raise self.fail(line, f"column {NAME.heading!r} is empty")
        return Row(**values)

    def value(self, line: int, column: Column, cell: str) -> Any:
        if column.kind is TEXT:
            return unguarded(cell) or None
        cell = cell.strip()
        if not cell:
            return None
        try:
            value = column.kind.parse(cell)
        except ValueError as error:
            shown = cell if len(cell) <= 40 else cell[:39] + "…"
            raise self.fail(
                line, f"column {column.heading!r} holds {shown!r}, expected {error}"
            ) from None
        if column.positive and value == 0:
            self.note(f"line {line}: 0 in column {column.heading!r} read as not measured")
            return None
        return value


def _classic(rows: Sequence[Row]) -> list[Row]:
    """Rows of a file without a family column, with what kernel names tell filled in."""
    named = [_named(row) for row in rows]
    shapes = [PartialWorkload.of(row) for row in named if row.is_variant]
    return [
        adopted(PartialWorkload.of(row), shapes).apply_to(row) if row.is_reference else row
        for row in named
    ]


def _named(row: Row) -> Row:
    label = _LABELS.get(row.kernel.strip().lower())
    if label is not None:
        return replace(row, kernel=label, family=REFERENCE_FAMILY)
    identity = identify(row.kernel)
    parts: dict[str, Any] = {
        "dtype": row.dtype or identity.dtype,
        "causal": identity.causal if row.causal is None else row.causal,
        "op": row.op or identity.op,
    }
    return replace(
        row,
        kernel=identity.label if identity.family == REFERENCE_FAMILY else row.kernel,
        family=identity.family,
        **parts,
    )
