"""The metrics of a raw page, column by column: a page of a few thousand launches has millions of
cells, most of them the same text in every row.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from fa_tune.core.errors import UnknownUnit
from fa_tune.core.model import Quantity
from fa_tune.core.units import Unit, parse_unit
from fa_tune.profile.ncu.launches import MetricValue
from fa_tune.profile.ncu.log_tables import Texts
from fa_tune.profile.ncu.metrics import METRICS, fits, impossible
from fa_tune.profile.ncu.number_format import NumberStyle

Read = Callable[[str, int], MetricValue]
"""The value of a cell's text; the line is for errors."""

# Whole columns: a pattern that is matched once costs less than one that is matched per cell.
_INTEGER = "(?:0|[1-9][0-9]{0,19})"
_INTEGERS = re.compile(f"{_INTEGER}(?:{Texts.separator}{_INTEGER})*")
_DECIMAL = f"{_INTEGER}(?:[.][0-9]{{1,19}})?"
_DECIMALS = re.compile(f"{_DECIMAL}(?:{Texts.separator}{_DECIMAL})*")


class Column:
    """The values of one metric in a block of rows: one for all, numbers of one unit, or any."""

    def __init__(self, values: array[float] | Sequence[MetricValue], unit: str = "") -> None:
        self._values = values  # a single one stands for all rows
        self._unit = unit

    def __getitem__(self, row: int) -> MetricValue:
        values = self._values
        if isinstance(values, array):
            return Quantity(values[row], self._unit)
        return values[row] if len(values) > 1 else values[0]


class Cells(Mapping[str, MetricValue]):
    """The metrics of one launch: a row of columns that it shares with others."""

    __slots__ = ("_columns", "_row")

    def __init__(self, columns: Mapping[str, Column], row: int) -> None:
        self._columns = columns
        self._row = row

    def __getitem__(self, name: str) -> MetricValue:
        return self._columns[name][self._row]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return repr(dict(self))


def read_column(
    name: str,
    unit: str,
    texts: str | Texts,
    lines: Sequence[int],
    style: NumberStyle,
    read: Read,
) -> Column:
    """The column of a metric: its texts as they stand, or the one that all rows have.

    `read` gives the value of any text, and raises for those that mean nothing.
    """
    if isinstance(texts, str):
        return Column((read(texts, lines[0]),))
    known = _numeric_unit(name, unit)
    numbers = None if known is None else _numbers(texts, known, style)
    if known is not None and numbers is not None:
        each = set(numbers) if name in METRICS else ()
        if not any(impossible(name, Quantity(number, known.base)) for number in each):
            return Column(numbers, known.base)
    values: dict[str, MetricValue] = {}
    for text, line in zip(texts.each, lines, strict=True):
        if text not in values:
            values[text] = read(text, line)
    return Column([values[text] for text in texts.each])


def are_plain_integers(texts: Texts) -> bool:
    """Whether no text says anything about the style of numbers."""
    return _INTEGERS.fullmatch(texts.joined) is not None


def _numeric_unit(name: str, unit: str) -> Unit | None:
    """The unit, if it is one that the metric may have."""
    try:
        known = parse_unit(unit)
    except UnknownUnit:
        return None
    return known if fits(name, known.base) else None


def _numbers(texts: Texts, unit: Unit, style: NumberStyle) -> array[float] | None:
    """The texts in base units, if every one is an ordinary number that is not negative."""
    joined = texts.joined
    if style.decimal != "." or not _DECIMALS.fullmatch(joined):
        plain = {text: style.plain(text) for text in dict.fromkeys(texts.each)}
        if None in plain.values():
            return None
        joined = Texts.separator.join(str(plain[text]) for text in texts.each)
        if not _DECIMALS.fullmatch(joined):
            return None
    numbers = joined.split(Texts.separator)
    if unit.multiplier == unit.divisor:
        return array("d", map(float, numbers))
    return array("d", (_scaled(number, unit) for number in numbers))


def _scaled(number: str, unit: Unit) -> float:
    whole, _, fraction = number.partition(".")
    # Python rounds a quotient of integers once, and correctly.
    scaled: float = int(whole + fraction) * unit.multiplier / (unit.divisor * 10 ** len(fraction))
    return scaled
