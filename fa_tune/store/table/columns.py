"""The columns of a table: heading, field, how it is written and read.

The first eleven are those of the classic autotuning CSV, in its order; ours come after.
Units appear here and nowhere before: rows hold base units.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fa_tune.core import units
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import Outcome
from fa_tune.core.workload import FIELDS, USUAL, DType, column_of
from fa_tune.store.table.rows import Row

REGISTERS = "launch__registers_per_thread"
L2_HIT = "lts__t_sector_hit_rate.pct"
SM_CLOCK = "sm__cycles_elapsed.avg.per_second"
SIGNIFICANT_DIGITS = 12  # of a number in a file: picoseconds of a second, no binary noise


@dataclass(frozen=True)
class Kind:
    """How one kind of value becomes a cell and comes back.

    `parse` gets stripped, non-empty text and raises ValueError (InvalidConfig included)
    with what it expected.  `show` is for people, with `Column.decimals`.
    """

    name: str
    text: Callable[[Any], str]
    parse: Callable[[str], Any]
    show: Callable[[Any, int], str]
    right: bool = True


@dataclass(frozen=True)
class Column:
    """A heading and the row field under it; `decimals` are for people only.  A table whose rows
    have nothing but `only_unless` in the field goes without the column.  `metric`: the counter,
    by ncu's name, that the field holds, in base units of `unit`."""

    heading: str
    field: str
    kind: Kind
    decimals: int = 0
    positive: bool = False  # zero cannot be a value: where a file has it, nothing was measured
    only_unless: tuple[object, ...] = ()
    metric: str = ""
    unit: str = ""

    def cell(self, row: Row) -> str:
        """The value as files hold it; a missing one is empty."""
        value = getattr(row, self.field)
        return "" if value is None or value == "" else self.kind.text(value)

    def shown(self, row: Row) -> str:
        """The value as people read it; a missing one is empty."""
        value = getattr(row, self.field)
        return "" if value is None or value == "" else self.kind.show(value, self.decimals)


_GROUPED = re.compile(r"\d{1,3}(,\d{3})+")
# float() also takes "nan", "inf" and "1_0", none of which a measurement can be.
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3})?")
_LEAST, _MOST = 1e-30, 1e30  # so that no quotient of two is beyond a float


def _number(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError("a number")
    value = float(text)
    if value < 0:
        raise ValueError("a number that is not negative")
    if value and not _LEAST <= value <= _MOST:
        raise ValueError(f"a number between {_LEAST:g} and {_MOST:g}")
    return value


def _count(text: str) -> float:
    return _number(text.replace(",", "") if _GROUPED.fullmatch(text) else text)


def _whole(text: str) -> int:
    value = _count(text)
    if not value.is_integer():
        raise ValueError("a whole number")
    return int(value)


def _short(value: float) -> str:
    return format(value, f".{SIGNIFICANT_DIGITS}g")


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
    except KeyError:
        raise ValueError("true or false") from None


def _dtype(text: str) -> DType:
    try:
        return DType.from_string(text)
    except InvalidConfig:
        raise ValueError("FP16 or BF16") from None


def _outcome(text: str) -> Outcome:
    try:
        return Outcome(text)
    except ValueError:
        raise ValueError("one of " + ", ".join(Outcome)) from None


def _scaled(name: str, ncu_name: str = "") -> Kind:
    """A number shown in the unit `name`, held in that unit's base; shifted in decimal, so
    that a value written and read back is the same value.  `ncu_name`: how ncu spells it."""
    unit = units.parse_unit(ncu_name or name)
    shift = (Decimal(unit.multiplier) / unit.divisor).adjusted()  # all of these are powers of ten

    def scaled(value: Decimal) -> Decimal:
        return value * unit.divisor / unit.multiplier

    def text(value: float) -> str:
        return format(scaled(Decimal(_short(value))).normalize(), "f")

    def parse(cell: str) -> float:
        _number(cell)
        digits, _, power = cell.lower().partition("e")
        return float(f"{digits}e{int(power or 0) + shift}")  # rounded once

    def show(value: float, decimals: int) -> str:
        return units.format_fixed(float(scaled(Decimal(value))), decimals)

    return Kind(name, text, parse, show)


_FORMULA = re.compile(r"'*[=+@\t\r-]")


def _guarded(value: Any) -> str:
    """Text behind a quote where a spreadsheet would compute it."""
    return f"'{value}" if _FORMULA.match(str(value)) else str(value)


def unguarded(cell: str) -> str:
    """The text of a cell, as it was before it was written."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell[1:]) else cell


TEXT = Kind("text", _guarded, unguarded, lambda value, _: str(value), right=False)
REAL = Kind("real", _short, _number, lambda value, decimals: f"{value:.{decimals}f}")
EXACT = Kind("number", repr, _number, lambda value, _: f"{value:g}")  # no digit is lost
COUNT = Kind("count", _short, _count, lambda value, decimals: f"{value:,.{decimals}f}")
WHOLE = Kind("whole", str, _whole, lambda value, _: str(value))
MILLISECONDS = _scaled("ms")
GIGAHERTZ = _scaled("GHz")
GIGABYTES_PER_S = _scaled("GB/s", "Gbyte/s")
SAMPLES = Kind(
    "numbers in ms",
    lambda values: " ".join(MILLISECONDS.text(v) for v in values),
    lambda cell: tuple(MILLISECONDS.parse(word) for word in cell.split()),
    lambda values, decimals: " ".join(MILLISECONDS.show(v, decimals) for v in values),
)
RATIOS = Kind(
    "numbers",
    lambda values: " ".join(map(_short, values)),
    lambda cell: tuple(map(_number, cell.split())),
    lambda values, decimals: " ".join(f"{v:.{decimals}f}" for v in values),
)
BOOLEAN = Kind("boolean", lambda value: str(value).lower(), _boolean, lambda v, _: str(v).lower())
DTYPE = Kind("dtype", lambda value: str(value.name), _dtype, lambda value, _: str(value.name))
OUTCOME = Kind("outcome", str, _outcome, lambda value, _: str(value), right=False)

CLASSIC_COLUMNS: tuple[Column, ...] = (
    Column("Kernel Name", "kernel", TEXT),
    Column("Dur (ms)", "duration_s", MILLISECONDS, 3, positive=True),
    Column("% inv Dur (ms)", "duration_percent_of_baseline", REAL, 1, positive=True),
    Column("Cycles", "cycles", COUNT, 0, positive=True),
    Column("% inv Cycles", "cycles_percent_of_baseline", REAL, 1, positive=True),
    Column("Regs", "registers", WHOLE, positive=True, metric=REGISTERS, unit="register/thread"),
    Column("L2 Hit %", "l2_hit_percent", REAL, 1, metric=L2_HIT, unit="%"),
    Column("TFLOP/s", "tflops", REAL, 1, positive=True),
    Column("Attn TFLOP/s", "attn_tflops", REAL, 1, positive=True),
    Column("d_head", "d_head", WHOLE, positive=True),
    Column("seq_len", "seq_len", WHOLE, positive=True),
)

_KINDS = {int: WHOLE, bool: BOOLEAN, float: EXACT, str: TEXT, DType: DTYPE}


def _workload_columns() -> tuple[Column, ...]:
    """A column for each field of a workload that the classic ones lack; the dtype stands first."""
    classic = {column.field for column in CLASSIC_COLUMNS}
    names = sorted((n for n in FIELDS if column_of(n) not in classic), key=lambda n: n != "dtype")
    return tuple(
        Column(
            *(column_of(name), column_of(name), _KINDS[FIELDS[name].type]),
            positive=FIELDS[name].type in (int, float),
            only_unless=() if FIELDS[name].always_column else (None, USUAL.get(name)),
        )
        for name in names
    )


OUR_COLUMNS: tuple[Column, ...] = (
    Column("family", "family", TEXT),
    *_workload_columns(),
    Column("method", "method", TEXT),
    Column("inputs", "inputs", TEXT, only_unless=("", str(NORMAL))),
    Column("n", "n", WHOLE, positive=True),
    Column("median (ms)", "median_s", MILLISECONDS, 3, positive=True),
    Column("min (ms)", "min_s", MILLISECONDS, 3, positive=True),
    Column("max (ms)", "max_s", MILLISECONDS, 3, positive=True),
    Column("samples (ms)", "samples_s", SAMPLES, 3),
    Column("4sqd TFLOP/s", "matmul_tflops", REAL, 1, positive=True),
    Column(
        "SM clock (GHz)", "sm_clock_hz", GIGAHERTZ, 3, positive=True, metric=SM_CLOCK, unit="hz"
    ),
    Column("outcome", "outcome", OUTCOME),
    Column("reason", "reason", TEXT),
    Column("relative", "relative", RATIOS, 4),
    Column("preference", "preference", WHOLE),
    Column("held out (ms)", "held_out_s", SAMPLES, 3, only_unless=(None,)),
    Column("held out, relative", "held_out_relative", RATIOS, 4, only_unless=(None,)),
)

COLUMNS = CLASSIC_COLUMNS + OUR_COLUMNS
# What follows from the others: for readers of a report, not kept in a recording, not read back.
DERIVED_COLUMNS = (Column("GB/s", "bytes_per_s", GIGABYTES_PER_S, only_unless=(None,)),)
COUNTERS = tuple(column for column in COLUMNS if column.metric)
BY_HEADING: Mapping[str, Column] = {column.heading: column for column in COLUMNS}
BY_FIELD: Mapping[str, Column] = {column.field: column for column in COLUMNS + DERIVED_COLUMNS}


def columns_of(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> tuple[Column, ...]:
    """Those of the columns that a file of these rows has."""
    return tuple(
        column
        for column in columns
        if not column.only_unless
        or any(getattr(row, column.field) not in column.only_unless for row in rows)
    )


def counters_of(read: Callable[[str], float | None], cycles: str) -> dict[str, float | None]:
    """The row fields that hold counters, by what `read` gives for a metric's name (None: not
    collected); `cycles` is the metric that counts cycles."""
    found = {column.field: read(column.metric) for column in COUNTERS}
    found["cycles"] = read(cycles)
    return {name: v or None if BY_FIELD[name].positive else v for name, v in found.items()}
