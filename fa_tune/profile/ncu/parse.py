"""Reading what ncu printed: the details page, the raw page, and clear words for the rest.

`parse_ncu_csv` is pure and takes a whole log, `==` lines, program output and all.  Columns are
found by name.  A file is read completely or refused with one line; the only part ever left out
is a last row that a killed profiler did not finish, and that is said in the warnings.

Left out on purpose: rule rows (advice in prose), and `launch__occupancy_per_*`, tables squeezed
into one cell whose printed number is a meaningless sum.  A cell that lists a metric's instances
(`--print-metric-instances`) is Missing("instances").
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path

from fa_tune.core.errors import ProfileFormatError, StorageError, UnknownUnit
from fa_tune.core.files import read_bytes
from fa_tune.core.model import Quantity
from fa_tune.core.units import parse_unit, to_base
from fa_tune.profile.ncu import ncu_rep
from fa_tune.profile.ncu.diagnose import diagnose_log
from fa_tune.profile.ncu.display_names import IDENTIFIERS
from fa_tune.profile.ncu.launches import Launch, MetricValue, Missing, Profile
from fa_tune.profile.ncu.log_tables import (
    IDENTITY,
    LogBlock,
    LogRow,
    LogTable,
    decode,
    is_whole_number,
    read_log,
    whole_number,
)
from fa_tune.profile.ncu.metrics import METRICS, checked, expected_unit, is_whole
from fa_tune.profile.ncu.number_format import NumberCell, NumberStyle, decide_style, looks_numeric
from fa_tune.profile.ncu.raw_columns import Cells, are_plain_integers, read_column

_METRIC_COLUMNS = ("Section Name", "Metric Name", "Metric Unit", "Metric Value")
_RULE_COLUMNS = (
    "Rule Name",
    "Rule Type",
    "Rule Description",
    "Estimated Speedup Type",
    "Estimated Speedup",
)
_SUMMARY_COLUMNS = {"Invocations", "Minimum", "Maximum", "Average"}
_IDENTIFIER = re.compile(r"(?:[a-z]+:)?[a-z][a-z0-9]*__[A-Za-z0-9_.]+")
# Source-level metrics of the raw page, such as `inst_executed`, have no double underscore.
_RAW_NAME = re.compile(r"[a-z][A-Za-z0-9_.:]*")
_NVTX = re.compile(r"(?:Domain|Id:Domain|thread Domain).*Range", re.IGNORECASE)
_REPORT_SUFFIXES = (".ncu-rep", ".ncu-repz", ".nsight-cuprof-report")
_REPORT_ADVICE = (
    "this is an ncu report, not its text; print it with "
    "`ncu --import FILE --page raw --csv --print-units base`"
)
_CAPABILITY = re.compile(r"[0-9]+[.,][0-9]+")
Columns = Mapping[str, int]

_MISSING = {
    "": "empty",
    "no data": "no data",
    "n/a": "n/a",
    "na": "n/a",
    "nan": "nan",
    "nan(ind)": "nan",
    "inf": "inf",
    "infinity": "inf",
}
_INSTANCED = Missing("instances")
_NOT_READ = "cells that list instances were not read; --print-metric-instances none"
# The aggregate followed by its instances: `240; 240` or `12 (3; 4; 5)`.
_INSTANCES = re.compile(r"[+-]?[0-9][^;()]*(?:;.*|\(.*\))", re.DOTALL)


def parse_ncu_csv(text: str | bytes, *, decimal: str | None = None) -> Profile:
    """The launches in what `ncu --csv` printed, with values in base units.

    `decimal` (`.` or `,`) is the decimal mark where the caller knows it, as for a run it
    started itself; otherwise it is found from the values.  Raises ProfileFormatError for a
    text that holds no launches, and says what it is instead; UnknownUnit for a time, rate or
    size that cannot be converted.
    """
    remarks: tuple[str, ...] = ()
    if isinstance(text, bytes):
        if _is_report(text):
            raise ProfileFormatError(_REPORT_ADVICE)
        text, remarks = decode(text)
    if not text.strip("\ufeff \t\r\n\0"):
        raise ProfileFormatError("the file is empty: ncu printed nothing, or was killed")
    log = read_log(text)
    tables = [table for table in log.tables if not table.is_empty]
    # A page is long, and what it holds says nothing of a failure.
    failed = _failure("\n".join(log.diagnostics) if tables else text)
    if failed and not tables:
        raise ProfileFormatError(f"no launches in it: {failed}")
    if not log.tables:
        raise ProfileFormatError(_no_table(text))
    for table in log.tables:
        _check_form(table)
    forms = {"raw" if t.is_raw else "details" for t in log.tables}
    if len(forms) > 1:
        raise ProfileFormatError("a details page and a raw page in one file; split them")
    if not tables:
        raise ProfileFormatError(
            "no launches in it: a header only; ncu was stopped before the first"
        )
    form = forms.pop()
    style = decide_style(
        (cell for table in tables for cell in _number_cells(table)), decimal=decimal
    )
    warnings = [*remarks, *log.warnings]
    if failed:
        warnings.append(f"later launches may be missing: {failed}")
    warnings += [f"no launch under the header of line {t.line}" for t in log.tables if t.is_empty]
    launches: list[Launch] = []
    for table in tables:
        warnings += _unknown_columns(table)
        if form == "details":
            launches += _read_details(table, style, warnings)
        else:
            launches += _read_raw(table, style, warnings)
    _refuse_repeated(launches)
    return Profile(form, tuple(launches), tuple(log.diagnostics), tuple(dict.fromkeys(warnings)))


def read_profile(path: str | Path, *, decimal: str | None = None) -> Profile:
    """`parse_ncu_csv` of a file; a report (`.ncu-rep`) is read through ncu's own Python
    module where that is installed.

    Raises StorageError if the file cannot be read and ProfileFormatError, with the path, if
    it cannot be understood.
    """
    path = Path(path)
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise StorageError(f"cannot read {path}: no such file") from None
    return profile_of(data, path, decimal=decimal)


def profile_of(data: bytes, path: Path, *, decimal: str | None = None) -> Profile:
    """`read_profile` of a file whose bytes are at hand."""
    if _is_report(data) or (path.suffix in _REPORT_SUFFIXES and b"\0" in data[:4096]):
        module = ncu_rep.find_module() if path.is_file() else None
        if module is not None:
            return ncu_rep.read_report(path, module=module)
        raise ProfileFormatError(f"{path}: {_REPORT_ADVICE}")
    try:
        return parse_ncu_csv(data, decimal=decimal)
    except ProfileFormatError as error:
        raise type(error)(f"{path}: {error}") from error


def _is_report(data: bytes) -> bool:
    return data.startswith((b"NVR\0", b"\x28\xb5\x2f\xfd"))  # plain, and zstd-compressed


# What a command that measures can do instead; who reads a file cannot.
_HOW_ELSE = re.compile(r"[,;]? (?:without that |else |or )(?:use )?--profiler events")


def _failure(text: str) -> str | None:
    """Cause of a failure in a run whose exit status is not known; None if there was none."""
    errors = re.search(r"^==ERROR==", text, re.MULTILINE)
    diagnosis = diagnose_log(text, exit_code=1 if errors else 0)
    if diagnosis is None or not diagnosis.fatal:
        return None
    return _HOW_ELSE.sub("", diagnosis.message)


def _no_table(text: str) -> str:
    """Kind of a text that has no launches."""
    if report := re.search(r"^==PROF== Report: *(.+?) *$", text, re.MULTILINE):
        return (
            f"ncu wrote what it measured to {report[1]}; print it with "
            f"`ncu --import {report[1]} --page raw --csv --print-units base`"
        )
    rerun = "; rerun ncu with `--csv --page raw --print-units base`"
    if re.search(r"^\s*-{5,}\s+-{5,}", text, re.MULTILINE):
        return "this is ncu's table for the console" + rerun
    if re.search(r'^"?(?:ID|Process ID)"?[;\t]', text, re.MULTILINE):
        return "the columns are separated by something other than commas" + rerun
    if text.lstrip("\ufeff").startswith('"ID","Process ID"'):
        return "cut off within the header; was ncu killed?"
    if text.startswith("==PROF== "):
        return "it ended before a table: ncu or the profiled program was killed; run them again"
    return "no ncu table in it" + rerun


def _refuse_repeated(launches: list[Launch]) -> None:
    """A launch that stands twice would be counted twice."""
    seen: set[tuple[int, int]] = set()
    for launch in launches:
        key = (launch.process_id, launch.launch_id)
        if key in seen:
            raise ProfileFormatError(
                f"launch {key[1]} of process {key[0]} stands twice: a row is repeated, or files "
                "were joined; give each file by itself"
            )
        seen.add(key)


def _check_form(table: LogTable) -> None:
    columns = set(table.columns)
    if "Metric Value" not in columns and len(columns & _SUMMARY_COLUMNS) >= 2:
        raise ProfileFormatError(
            "this is a summary (--print-summary: minimum, maximum, average over launches), which "
            "has no single launches; rerun ncu without --print-summary, with --csv --page raw"
        )
    needed = {"ID", "Process ID", "Kernel Name"}
    if "Metric Name" in columns:
        needed |= set(_METRIC_COLUMNS)
    elif not table.is_empty and table.units is None:
        raise ProfileFormatError(f"no row of units under the header of line {table.line}")
    known = {*IDENTITY, *_METRIC_COLUMNS}
    for name in columns:
        if table.header.count(name) > 1 and (name in known or _RAW_NAME.fullmatch(name)):
            raise ProfileFormatError(f"the header of line {table.line} has {name} twice")
    if missing := needed - columns:
        raise ProfileFormatError(
            f"the header of line {table.line} lacks {', '.join(sorted(missing))}"
        )


# Cells --------------------------------------------------------------------------------------


def _is_rule(row: LogRow, table: LogTable) -> bool:
    """Rule rows name a rule and leave the metric's columns empty; a metric's row names none."""
    if row.fields[table.columns["Metric Name"]].strip():
        if any(_field(row, table.columns, column) for column in _RULE_COLUMNS):
            raise ProfileFormatError(f"line {row.line} names both a metric and a rule")
        return False
    place = table.columns.get("Rule Name", len(row.fields))
    if place < len(row.fields) and row.fields[place]:
        return True
    raise ProfileFormatError(f"line {row.line} names neither a metric nor a rule")


def _details_key(section: str, name: str) -> str:
    """The identifier of a details row, whichever of label, name or both it shows."""
    section, name = section.strip(), name.strip()
    if _IDENTIFIER.fullmatch(name):
        return name
    if (section, name) in IDENTIFIERS:
        return IDENTIFIERS[section, name]
    last = name.rpartition(" ")[2].strip("()[]")
    return last if _IDENTIFIER.fullmatch(last) else f"{section}/{name}"


def _details_cells(table: LogTable) -> Iterator[tuple[LogRow, str, str, str]]:
    """(row, key, unit, text) of every metric on a details page."""
    section, name, unit, value = (table.columns[c] for c in _METRIC_COLUMNS)
    for row in table.rows:
        if not _is_rule(row, table):
            f = row.fields
            yield row, _details_key(f[section], f[name]), f[unit].strip(), f[value].strip()


def _raw_columns(table: LogTable) -> list[tuple[int, str, str]]:
    """(place, identifier, unit) of the metric columns of a raw page."""
    assert table.units is not None
    return [
        (place, name, table.units[place].strip())
        for name, place in table.columns.items()
        if _RAW_NAME.fullmatch(name) and not name.startswith("launch__occupancy_per_")
    ]


def _number_cells(table: LogTable) -> Iterator[NumberCell]:
    if not table.is_raw:
        for _, key, unit, text in _details_cells(table):
            if looks_numeric(text):
                yield NumberCell(text, _is_whole(key, unit))
        return
    for place, name, unit in _raw_columns(table):
        whole = _is_whole(name, unit)
        for block in table.blocks:
            column = block.columns[place]
            if isinstance(column, str):
                yield NumberCell(column.strip(), whole)
            elif not are_plain_integers(column):
                for text in dict.fromkeys(column.each):
                    yield NumberCell(text.strip(), whole)


def _is_whole(key: str, unit: str) -> bool:
    try:
        return is_whole(key, parse_unit(unit))
    except UnknownUnit:
        return False  # refused when the value is read, with its line


def _value(key: str, unit: str, text: str, style: NumberStyle, line: int) -> MetricValue:
    """Value of one cell.  Raises UnknownUnit or ProfileFormatError, with metric and line."""
    if "\n" in text.strip():
        raise ProfileFormatError(f"line {line}, {key}: a line ends within {text[:40]!r}")
    text = text.removeprefix("(!)").strip()  # how old releases mark a failed metric
    reason = _MISSING.get(text.lower().lstrip("+-"))
    if reason is not None:
        return Missing(reason)
    if not looks_numeric(text) and _INSTANCES.fullmatch(text):
        return _INSTANCED
    number = style.value(text)
    try:
        if number is None:
            # Only names of things, which have no unit, are no numbers.
            if parse_unit(unit).base or key in METRICS or expected_unit(key) is not None:
                raise ProfileFormatError(f"{text!r} is not a number")
            return text
        return checked(key, _quantity(number, unit, text), unit, text)
    except ProfileFormatError as error:
        raise type(error)(f"line {line}, {key}: {error}") from error


def _quantity(number: Decimal, unit: str, text: str) -> Quantity:
    try:
        quantity = to_base(number, unit)
    except ArithmeticError:
        raise ProfileFormatError(f"{text[:40]!r} is too large") from None
    if not math.isfinite(quantity.value):
        raise ProfileFormatError(f"{text[:40]!r} is too large")
    return quantity


# Pages --------------------------------------------------------------------------------------


def _read_details(table: LogTable, style: NumberStyle, warnings: list[str]) -> list[Launch]:
    metrics: dict[tuple[int, int], dict[str, MetricValue]] = {}
    first: dict[tuple[int, int], LogRow] = {}
    for row in table.rows:  # rule rows too: a launch may have nothing else
        key = _launch_key(row, table.columns)
        known = first.setdefault(key, row)
        metrics.setdefault(key, {})
        for column in IDENTITY:
            if _field(row, table.columns, column) != _field(known, table.columns, column):
                raise ProfileFormatError(
                    f"line {row.line}: launch {key[1]} of process {key[0]} has another "
                    f"{column.lower()} than on line {known.line}"
                )
    read: dict[tuple[str, str, str], MetricValue] = {}
    for row, *cell in _details_cells(table):
        name, unit, text = cell
        value = read.get((name, unit, text))
        if value is None:
            value = read[name, unit, text] = _value(name, unit, text, style, row.line)
        if value == _INSTANCED:
            warnings.append(_NOT_READ)
        values = metrics[_launch_key(row, table.columns)]
        if isinstance(values.get(name, Missing("")), Missing):
            values[name] = value
        elif values[name] != value and not isinstance(value, Missing):
            warnings.append(f"{name} has two values in one launch; the first is kept")
    return [_launch(row, table.columns, metrics[key]) for key, row in first.items()]


def _read_raw(table: LogTable, style: NumberStyle, warnings: list[str]) -> list[Launch]:
    launches: list[Launch] = []
    for i, block in enumerate(table.blocks):
        launches += _read_block(block, table, style, warnings)
        table.blocks[i] = LogBlock((), ())  # what has been read needs no room
    return launches


def _read_block(
    block: LogBlock, table: LogTable, style: NumberStyle, warnings: list[str]
) -> Iterator[Launch]:
    def value(name: str, unit: str, text: str, line: int) -> MetricValue:
        found = _value(name, unit, text.strip(), style, line)
        if found == _INSTANCED:
            warnings.append(_NOT_READ)
        return found

    metrics = {
        name: read_column(
            name, unit, block.columns[place], block.lines, style, partial(value, name, unit)
        )
        for place, name, unit in _raw_columns(table)
    }
    identity = {
        name: block.texts(table.columns[name]) for name in IDENTITY if name in table.columns
    }
    columns = {name: place for place, name in enumerate(identity)}
    rows = zip(block.lines, zip(*identity.values(), strict=True), strict=True)
    for i, (line, fields) in enumerate(rows):
        yield _launch(LogRow(line, fields), columns, Cells(metrics, i))


def _launch_key(row: LogRow, columns: Columns) -> tuple[int, int]:
    return (
        whole_number(_field(row, columns, "Process ID")),
        whole_number(_field(row, columns, "ID")),
    )


def _launch(row: LogRow, columns: Columns, metrics: Mapping[str, MetricValue]) -> Launch:
    process_id, launch_id = _launch_key(row, columns)
    capability = _field(row, columns, "CC")
    if capability and not _CAPABILITY.fullmatch(capability):
        raise ProfileFormatError(f"line {row.line}: {capability[:40]!r} is no CC")
    for column in ("Context", "Stream", "Device"):
        if (text := _field(row, columns, column)) and not is_whole_number(text):
            raise ProfileFormatError(f"line {row.line}: {text[:40]!r} is no {column}")
    return Launch(
        process_id,
        launch_id,
        _field(row, columns, "Kernel Name"),
        _dimensions(row, columns, "Block Size"),
        _dimensions(row, columns, "Grid Size"),
        _field(row, columns, "Device"),
        capability,
        metrics,
        _field(row, columns, "Host Name"),
    )


def _field(row: LogRow, columns: Columns, column: str) -> str:
    place = columns.get(column)
    return "" if place is None or place >= len(row.fields) else row.fields[place].strip()


def _dimensions(row: LogRow, columns: Columns, column: str) -> tuple[int, int, int] | None:
    """`(128, 1, 1)`; None where the release printed no such column."""
    text = _field(row, columns, column)
    if not text:
        return None
    inside = text.strip("() ")
    # A comma followed by a space separates; one between digits may group them.
    parts = inside.split(", ") if ", " in inside else inside.split(",")
    if len(parts) != 3 or not all(is_whole_number(part) for part in parts):
        raise ProfileFormatError(f"line {row.line}: {text!r} is no {column}")
    x, y, z = (whole_number(part) for part in parts)
    return x, y, z


def _unknown_columns(table: LogTable) -> list[str]:
    known = {*IDENTITY, *_RULE_COLUMNS, *_METRIC_COLUMNS, ""}
    raw = table.is_raw
    ignored = [
        repr(name)
        for name in table.columns
        if name not in known and not (raw and _RAW_NAME.fullmatch(name)) and not _NVTX.search(name)
    ]
    if len(ignored) < 2:
        return [f"column {name} is not known and was ignored" for name in ignored]
    shown = ", ".join(ignored[:3]) + (", …" if len(ignored) > 3 else "")
    return [f"{len(ignored)} columns are not known and were ignored: {shown}"]
