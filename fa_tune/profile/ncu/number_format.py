"""Numbers as a localised program prints them, read without guessing.

A number is read in a *style*: which character is the decimal mark and which one groups the
thousands.  Every cell of a file was printed in one style, so the styles under which all of
them are well formed are found first, and a cell is accepted only if these agree on it:
`1.234` beside `80,72` is 1234, beside `80.72` it is 1.234, and alone it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

from fa_tune.core.errors import ProfileFormatError

_SPACES = " \u00a0\u202f\u2009"  # plain, no-break, narrow no-break and thin
_GROUPINGS = {
    "comma": ",",
    "dot": ".",
    "space": _SPACES,
    "apostrophe": "'\u2019",
    "none": "",
}
_MARKS = ".,'\u2019" + _SPACES

_NUMERIC = re.compile(rf"[+-]?[0-9](?:[0-9{_MARKS}]*[0-9])?(?:[eE][+-]?[0-9]{{1,3}})?")
_PLAIN = re.compile(r"[+-]?(?:0|[1-9][0-9]*)")
# The only shape that has two readings: one mark, then exactly three digits.
_TWO_READINGS = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")


@dataclass(frozen=True)
class NumberStyle:
    """A decimal mark (`.` or `,`) and a kind of grouping (a key of the table above)."""

    decimal: str
    grouping: str

    def value(self, text: str) -> Decimal | None:
        """The number that `text` is in this style, or None if it is not well formed in it."""
        plain = self.plain(text)
        return None if plain is None else Decimal(plain)

    def plain(self, text: str) -> str | None:
        """`text` as Python writes numbers, or None if it is not well formed in this style.

        Groups are of three digits and complete, and nothing but 0 itself begins with a zero."""
        plain, grouped = _patterns(self)
        if plain.fullmatch(text):
            return text.replace(self.decimal, ".")
        if grouped is not None and grouped.fullmatch(text):
            for mark in _GROUPINGS[self.grouping]:
                text = text.replace(mark, "")
            return text.replace(self.decimal, ".")
        return None


STYLES = tuple(
    NumberStyle(decimal, grouping)
    for decimal in ".,"
    for grouping, marks in _GROUPINGS.items()
    if decimal not in marks
)


@lru_cache(maxsize=16)
def _patterns(style: NumberStyle) -> tuple[re.Pattern[str], re.Pattern[str] | None]:
    fraction = rf"(?:{re.escape(style.decimal)}[0-9]+)?"
    plain = re.compile(rf"[+-]?(?:0|[1-9][0-9]*){fraction}(?:[eE][+-]?[0-9]{{1,3}})?")
    marks = _GROUPINGS[style.grouping]
    if not marks:
        return plain, None
    groups = rf"(?:[{re.escape(marks)}][0-9]{{3}})+"
    return plain, re.compile(rf"[+-]?[1-9][0-9]{{0,2}}{groups}{fraction}")


class NumberCell(NamedTuple):
    """A cell that may hold a number.  `whole` says that the metric counts something in its
    smallest unit (nanoseconds, bytes, cycles, launches), so it has no fraction."""

    text: str
    whole: bool = False


def looks_numeric(text: str) -> bool:
    """Digits and marks only; whether it is a number depends on the style."""
    return _NUMERIC.fullmatch(text) is not None


def decide_style(cells: Iterable[NumberCell], *, decimal: str | None = None) -> NumberStyle:
    """The style in which all cells were printed.

    `decimal` is the decimal mark where the caller knows it from elsewhere.  Raises
    ProfileFormatError, naming the value, if the cells contradict each other, or if one of
    them has two readings between which nothing in the file decides.
    """
    remaining = [s for s in STYLES if decimal in (None, s.decimal)]
    witness = ""
    ambiguous: dict[str, bool] = {}
    shapes: dict[str, _Shape] = {}
    for text, whole in cells:
        form = text.translate(_DIGITS)
        shape = shapes.get(form)
        if shape is None:
            shape = shapes[form] = _Shape.of(text)
        if shape.has_two_readings:
            ambiguous[text] = ambiguous.get(text, False) or whole
        if not shape.styles:
            continue
        still = [s for s in remaining if s in shape.styles]
        if not still:
            raise ProfileFormatError(
                f"numbers of two styles in one file: {witness!r} and {text!r}"
                if witness
                else f"{text!r} is not a number with the decimal mark {decimal!r}"
            )
        if len(still) < len(remaining):
            remaining, witness = still, text
    if len({style.decimal for style in remaining}) == 1:
        return remaining[0]  # every text has one reading
    remaining = _drop_fractions(remaining, [t for t, whole in ambiguous.items() if whole])
    for text in ambiguous:
        readings = sorted({v for s in remaining if (v := s.value(text)) is not None})
        if len(readings) > 1:
            raise ProfileFormatError(
                f"{text!r} may mean {readings[1]} or {readings[0]}, and no other value in the "
                "file tells which; export it again with LC_ALL=C and more metrics"
            )
    return remaining[0]


_DIGITS = str.maketrans("123456789", "111111111")  # zeros stay: a number does not begin with one


class _Shape(NamedTuple):
    """Shape of texts that differ in their digits alone, zeros apart.  `styles` are those in
    which such a text is a number; none where it says nothing about the style."""

    has_two_readings: bool
    styles: tuple[NumberStyle, ...]

    @classmethod
    def of(cls, text: str) -> _Shape:
        says_nothing = _PLAIN.fullmatch(text) or not looks_numeric(text)
        styles = () if says_nothing else tuple(s for s in STYLES if s.plain(text) is not None)
        return cls(_TWO_READINGS.fullmatch(text) is not None, styles)


def _drop_fractions(styles: list[NumberStyle], whole: list[str]) -> list[NumberStyle]:
    """The styles that leave counts whole, if any of them does."""
    for text in whole:
        kept = [s for s in styles if (v := s.value(text)) is not None and v % 1 == 0]
        if kept:
            styles = kept
    return styles
