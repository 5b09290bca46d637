"""From the bytes of a profiler log to the rows of its tables.

A log is not a CSV file: `==` lines and the profiled program's own output stand before, after
and between the rows, and a killed profiler leaves the last row cut anywhere.  This module
finds the tables and their rows and knows nothing of metrics.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload

from fa_tune.core.errors import ProfileFormatError

# Columns that describe the launch, in every release seen; `Kernel Time` ended in 2021.
IDENTITY = (
    "ID",
    "Process ID",
    "Process Name",
    "Host Name",
    "Kernel Name",
    "Kernel Time",
    "Context",
    "Stream",
    "Block Size",
    "Grid Size",
    "Device",
    "CC",
)
_NUMBERED = ("ID", "Process ID", "Context", "Stream", "Device")
_ONE_LINE = (*_NUMBERED, "Block Size", "Grid Size", "CC", "Metric Unit", "Metric Value")
BLOCK_ROWS = 512  # enough that columns which never change cost nothing
_MAX_JOINED_LINES = 20  # a quoted field may contain line ends, but not a whole file
# Of a line that is taken for a damaged row: with numbers where a row has them, and without.
_FEWEST_PIECES, _MANY_PIECES = 4, 8
_WHOLE = re.compile("[0-9]{1,18}|[0-9]{1,3}(?:[.,'\u2019 \u00a0\u202f\u2009][0-9]{3}){1,5}")


@dataclass(frozen=True)
class LogRow:
    """Row of a table: its line number (from 1) and its fields as they stand."""

    line: int
    fields: tuple[str, ...]


@dataclass(frozen=True)
class Texts:
    """The texts of a column, joined: a list of them would take ten times the memory."""

    joined: str
    separator: str = "\0"

    @property
    def each(self) -> list[str]:
        """Row by row."""
        return self.joined.split(self.separator)


@dataclass(frozen=True)
class LogBlock:
    """Rows of a raw page that follow one another, by column: the line of each row, and for each
    column the one text that all rows have or the text of each."""

    lines: tuple[int, ...]
    columns: tuple[str | Texts, ...]

    @classmethod
    def of(cls, rows: Sequence[LogRow]) -> LogBlock | None:
        """Block of rows that have equally many fields; None if they hold what would separate
        them."""
        columns: list[str | Texts] = []
        for texts in zip(*(row.fields for row in rows), strict=True):
            if texts.count(texts[0]) == len(texts):
                columns.append(texts[0])
                continue
            joined = Texts(Texts.separator.join(texts))
            if joined.joined.count(Texts.separator) != len(texts) - 1:
                return None
            columns.append(joined)
        return cls(tuple(row.line for row in rows), tuple(columns))

    def texts(self, place: int) -> list[str]:
        """Texts of a column, row by row."""
        column = self.columns[place]
        return [column] * len(self.lines) if isinstance(column, str) else column.each


@dataclass
class LogTable:
    """A header and what follows it.  `columns` maps a column's name to its place.  The rows of a
    details page are in `rows`, those of a raw page, which are wide, in `blocks`."""

    line: int
    header: tuple[str, ...]
    quoted: bool
    columns: Mapping[str, int]
    units: tuple[str, ...] | None = None  # the raw page's second line
    rows: list[LogRow] = field(default_factory=list)
    blocks: list[LogBlock] = field(default_factory=list)

    @property
    def is_raw(self) -> bool:
        """Whether each row is a launch, with a column for each metric."""
        return "Metric Name" not in self.columns

    @property
    def is_empty(self) -> bool:
        """Whether nothing stands under the header but units."""
        return not self.rows and not self.blocks

    def add(self, row: LogRow) -> None:
        self.rows.append(row)
        if self.is_raw and len(self.rows) == BLOCK_ROWS:
            self.close()

    def close(self) -> None:
        """No row follows for now."""
        if self.is_raw and self.rows:
            block = LogBlock.of(self.rows)
            if block is None:
                line = self.rows[0].line
                raise ProfileFormatError(f"a row from line {line} on holds a zero byte")
            self.blocks.append(block)
            self.rows.clear()


@dataclass
class Log:
    """Contents of one text."""

    tables: list[LogTable] = field(default_factory=list)
    diagnostics: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def decode(data: bytes) -> tuple[str, tuple[str, ...]]:
    """The text of a log and any remark on how it was read: UTF-8, UTF-16 or UTF-32 by their
    byte-order marks, UTF-16 without one by its zero bytes, else Windows-1252."""
    for mark, encoding in (
        (b"\xef\xbb\xbf", "utf-8-sig"),
        (b"\xff\xfe\x00\x00", "utf-32"),
        (b"\x00\x00\xfe\xff", "utf-32"),
        (b"\xff\xfe", "utf-16"),
        (b"\xfe\xff", "utf-16"),
    ):
        if data.startswith(mark):
            # A killed writer leaves half a character at the end; the row is cut there anyway.
            return data.decode(encoding, errors="ignore"), ()
    sample = data[:4096]
    if sample and sample.count(0) > len(sample) // 4:
        return data.decode("utf-16-le" if sample[1::2].count(0) else "utf-16-be", "ignore"), ()
    try:
        return data.decode("utf-8"), ()
    except UnicodeDecodeError as error:
        if error.end == len(data) and error.reason == "unexpected end of data":
            return data.decode("utf-8", errors="ignore"), ()
        return data.decode("cp1252", errors="replace"), ("not UTF-8; read as Windows-1252",)


class _Lines(Sequence[str]):
    """`text.split("\\n")` without a second copy of the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts = array("q", [0])
        while end := text.find("\n", self._starts[-1]) + 1:
            self._starts.append(end)

    def __len__(self) -> int:
        return len(self._starts)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        last = place == len(self) - 1
        end = len(self._text) if last else self._starts[place + 1] - 1
        return self._text[self._starts[place] : end]


def read_log(text: str) -> Log:
    """Find the tables of a log.  Raises ProfileFormatError for a row damaged in the middle and
    for one without a header before it; an incomplete last row is left out with a warning."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    return _LogReader(_Lines(text)).read()


class _LogReader:
    """Goes through a log once, line by line."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines
        self._log = Log()
        self._kept: dict[str, str] = {}  # of texts that recur, one
        # A line with its number: before any header one that may be a row; of a table the first
        # that is not a whole row.
        self._early: tuple[int, str] | None = None
        self._broken: tuple[int, str] | None = None

    def read(self) -> Log:
        """Tables, diagnostics and warnings of the text."""
        table: LogTable | None = None
        place = 0
        while place < len(self._lines):
            line, number = self._lines[place], place + 1
            used = 1
            if line.startswith("=="):
                self._log.diagnostics.append(line.rstrip())
            elif (header := _header(line, number)) is not None:
                table = self._begun(header)
            elif table is None:
                if self._early is None and _looks_like_row(line):
                    self._early = (number, line)
            elif line.strip():
                used = self._read_record(place, table)
            place += used
        for table in self._log.tables:
            table.close()
        if self._broken is not None:
            self._log.warnings.append(
                f"the last row (line {self._broken[0]}) is incomplete and was left out; "
                "was the profiler killed?"
            )
        return self._log

    def _begun(self, table: LogTable) -> LogTable:
        if self._early is not None:
            raise ProfileFormatError(
                f"line {self._early[0]} is a row before the header of line {table.line}: "
                f"{_start(self._early[1])}"
            )
        self._log.tables.append(table)
        return table

    def _read_record(self, place: int, table: LogTable) -> int:
        """A row, or what may be one, or the program's own output; how many lines it takes."""
        line, number = self._lines[place], place + 1
        if table.quoted and line[0] not in '",':
            if _looks_like_row(line):
                self._broken = self._broken or (number, line)
            return 1
        fields, used = _record(self._lines, place, table)
        if fields is None or _is_cut(fields, table, last=place + used >= len(self._lines)):
            begun = fields or line.removeprefix('"').split('","')
            last = number == len(self._lines)
            unclosed = last and fields is None and line.startswith('"')
            if unclosed or _looks_like_row(line) or _could_be_row(begun, table, only=last):
                self._broken = self._broken or (number, line)
            return 1
        if table.units is None and _is_units_row(fields, table):
            table.units = tuple(fields)
        elif _is_row(fields, table) and not any(fields[len(table.header) :]):
            self._add(number, fields[: len(table.header)], table)
        else:
            raise ProfileFormatError(
                f"line {number} does not fit the header of line {table.line}: {_start(line)}"
            )
        return used

    def _add(self, number: int, fields: list[str], table: LogTable) -> None:
        if self._broken is not None:
            raise ProfileFormatError(
                f"line {self._broken[0]} is not a whole row, though rows follow it: "
                f"{_start(self._broken[1])}"
            )
        if not table.is_raw:
            fields = list(map(self._kept.setdefault, fields, fields))
        table.add(LogRow(number, tuple(fields)))


def _header(line: str, number: int) -> LogTable | None:
    """The table that `line` begins, if it is a header of ncu's.

    A program that ended without a line feed may stand before it on the same line."""
    if "Kernel Name" not in line:
        return None
    starts = [0, *(m.start() for m in re.finditer(r'"(?:ID|Process ID)",', line))]
    for start in starts:
        fields = _split(line[start:])
        names = tuple(f.strip() for f in fields or ())
        if names.count("Kernel Name") == 1 and ("ID" in names or "Invocations" in names):
            columns: dict[str, int] = {}
            for place, name in enumerate(names):
                columns.setdefault(name, place)
            return LogTable(number, names, line[start:].startswith('"'), columns)
    return None


def _split(line: str) -> list[str] | None:
    """The fields of one CSV line; None if it is not well formed."""
    if len(line) > 1 and line[0] == '"' == line[-1]:
        inside = line[1:-1]
        pieces = inside.split('","')
        if inside.count('"') == 2 * (len(pieces) - 1):
            return pieces  # every quotation mark is one between two fields
    try:
        fields = next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        return None
    stray = '""' not in line and any('"' in field for field in fields)  # which csv lets pass
    return None if stray else fields


def _record(lines: Sequence[str], start: int, table: LogTable) -> tuple[list[str] | None, int]:
    """The record that begins at `start` and how many lines it takes."""
    line = lines[start]
    fields = _split(line)
    if fields is not None:
        return fields, 1
    terminated = start + 1 < len(lines)
    body = line.rstrip()
    closed = body.endswith(('"', '",'))
    pieces = _pieces(body) if terminated and closed else []
    if pieces and _is_row(pieces, table) and _quoted_within(pieces) <= _name_column(table):
        return pieces, 1  # a quotation mark inside a kernel's name, not doubled
    for end in range(start + 2, min(start + _MAX_JOINED_LINES, len(lines)) + 1):
        if lines[end - 1].startswith(("==", '"')):
            break
        fields = _split("\n".join(lines[start:end]))
        if fields is not None and _is_row(fields, table):
            return (fields, end - start) if _is_whole(fields, table) else (None, 1)
    return None, 1


def _is_whole(fields: list[str], table: LogTable) -> bool:
    """No column that has one line has more; what a short row lacks has none."""
    one_line = (p for name, p in table.columns.items() if name in _ONE_LINE)
    return all("\n" not in fields[p] for p in one_line if p < len(fields))


def _pieces(line: str) -> list[str]:
    """A closed line split at `","`, for one whose quotation marks do not add up."""
    tail = [""] if line.endswith(",") else []
    return line.removesuffix(",").removeprefix('"').removesuffix('"').split('","') + tail


def _name_column(table: LogTable) -> set[int]:
    return {table.columns["Kernel Name"]}


def _quoted_within(pieces: list[str]) -> set[int]:
    """The places of the fields with a quotation mark in them."""
    return {place for place, piece in enumerate(pieces) if '"' in piece}


def _looks_like_row(line: str) -> bool:
    """Many quoted fields beside one another, or some with numbers first: a row, however damaged."""
    pieces = line.split('","')
    numbered = line.lstrip('"')[:1].isdigit()
    return len(pieces) >= (_FEWEST_PIECES if numbered else _MANY_PIECES)


def is_whole_number(text: str) -> bool:
    """An ID or a size, which has no fraction, so that its grouping cannot be mistaken."""
    return _WHOLE.fullmatch(text.strip()) is not None


def whole_number(text: str) -> int:
    """The value of such a text."""
    return int(re.sub(r"[^0-9]", "", text))


def _is_row(fields: list[str], table: LogTable) -> bool:
    """The launch's numbers are where they belong."""
    return all(
        table.columns[name] < len(fields) and is_whole_number(fields[table.columns[name]])
        for name in ("ID", "Process ID")
        if name in table.columns
    )


def _is_units_row(fields: list[str], table: LogTable) -> bool:
    return (
        table.is_empty
        and table.is_raw
        and len(fields) >= len(table.header)
        and not any(fields[table.columns[name]] for name in IDENTITY if name in table.columns)
    )


def _needed(table: LogTable) -> int:
    """How many fields a whole row has at least.  Details pages leave out the rule columns of
    a metric's row; raw pages leave out nothing."""
    if table.is_raw:
        return len(table.header)
    names = (*IDENTITY, "Section Name", "Metric Name", "Metric Unit", "Metric Value")
    return 1 + max(table.columns[name] for name in names if name in table.columns)


def _is_cut(fields: list[str], table: LogTable, *, last: bool) -> bool:
    """The record ends before its last field, or may do so.

    ncu quotes every value and ends every row with a line feed, so an unquoted number at the
    very end of a file may have lost digits."""
    if len(fields) < _needed(table):
        return True
    if last and table.is_raw and not fields[-1]:
        return True
    return last and not table.quoted and bool(fields[-1])


def _could_be_row(fields: list[str], table: LogTable, *, only: bool = False) -> bool:
    """Whether a broken record has the beginnings of a row: each numbered column that is
    still there holds a number.  `only` accepts one that was cut in its first field."""
    numbered = [n for n in _NUMBERED if table.columns.get(n, len(fields)) < len(fields) - 1]
    if not numbered:
        return only and len(fields) == 1 and is_whole_number(fields[0].strip('"'))
    return all(is_whole_number(fields[table.columns[n]]) for n in numbered)


def _start(line: str) -> str:
    return repr(line if len(line) <= 60 else line[:57] + "...")
