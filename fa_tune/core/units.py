"""Every unit conversion of the project: a number with any unit a profiler prints becomes a
Quantity in base units, and a Quantity becomes text for a person.

Base units are `s`, `hz`, `byte`, `byte/s` and `%`; a count keeps the unit it came with
(`cycle`, `register/thread`, none at all).  Kilo is 1000, for bytes too: that is how Nsight
Compute scales them (its manual, "Metrics and Units").  Own code instead of pint: the names of
units are ncu's, and no rounding may come in.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache

from fa_tune.core.errors import UnknownUnit
from fa_tune.core.model import Quantity

SECOND = "s"
HERTZ = "hz"
BYTE = "byte"
BYTE_PER_SECOND = "byte/s"
PERCENT = "%"
MAX_EXACT_DIGITS = 30  # before or after the point; beyond, integers would grow without bound


@dataclass(frozen=True)
class Unit:
    """What one spelling means: value · multiplier / divisor is in `base`.

    Two integers rather than one float, so that 1767 ns is exactly 1.767e-6 s."""

    multiplier: int
    divisor: int
    base: str

    @property
    def is_indivisible(self) -> bool:
        """Nanoseconds, bytes, plain counts: what a counter yields in it has no fraction."""
        if self.base == SECOND:
            return self.divisor == 10**9
        return self.multiplier == self.divisor == 1 and self.base not in (
            HERTZ,
            PERCENT,
            BYTE_PER_SECOND,
        )


@dataclass(frozen=True)
class _Atom:
    """One side of a unit's slash."""

    multiplier: int
    divisor: int
    base: str
    kind: str  # time, frequency, size, percent or count


def _spellings() -> dict[str, _Atom]:
    atoms = {PERCENT: _Atom(1, 1, PERCENT, "percent")}
    # ncu has written all of ns, nsecond and, in its manual, the Greek mu (two code points).
    micro = dict.fromkeys(("u", "\u00b5", "\u03bc"), 10**6)
    for prefix, divisor in ({"": 1, "m": 10**3, "n": 10**9} | micro).items():
        for stem in ("s", "sec", "second", "seconds"):
            atoms[prefix + stem] = _Atom(1, divisor, SECOND, "time")
    for power, prefix in enumerate(("", "k", "m", "g", "t", "p")):
        for case in {prefix, prefix.upper()}:
            for stem in ("byte", "bytes", "Byte", "Bytes"):
                atoms[case + stem] = _Atom(1000**power, 1, BYTE, "size")
            for stem in ("hz", "Hz"):
                atoms[case + stem] = _Atom(1000**power, 1, HERTZ, "frequency")
    return atoms


_SPELLINGS = _spellings()

# What a size may be counted by; any other word below the slash could be a misspelt time.
_COUNTED = frozenset(
    {"block", "thread", "warp", "cluster", "grid", "launch", "kernel", "pass", "SM"}
    | {"cycle", "inst", "instruction", "sector", "request", "register", "element"}
)

# A word that means a time, a rate or a size, though none of the spellings above.
_LOOKS_DIMENSIONED = re.compile(
    r".*(?:seconds?|secs?|minutes?|hours?|days?|hz|hertz|bytes?|bits?|bps)|[kmgtpnuµμ]?i?[sb]|min|hr?",
    re.IGNORECASE,
)


@lru_cache(maxsize=1024)
def parse_unit(text: str) -> Unit:
    """The meaning of a unit as ncu prints it: `nsecond`, `Ghz`, `cycle/nsecond` (a
    frequency), `Kbyte/block`, `inst`, ``.

    Raises UnknownUnit for a time, rate or size that has no known conversion.  Any other word
    is the name of a count and is kept: counts come with many names, and with none.
    """
    text = text.strip()
    numerator, slash, denominator = text.partition("/")
    above = _atom(numerator.strip(), text)
    if not slash:
        return Unit(above.multiplier, above.divisor, above.base)
    below = _atom(denominator.strip(), text)
    if above.kind == "size" and below.kind == "count" and below.base not in _COUNTED:
        raise UnknownUnit(f"unknown unit {text!r}: a size per {below.base!r}")
    multiplier = above.multiplier * below.divisor
    divisor = above.divisor * below.multiplier
    if below.kind == "time" and above.base in ("cycle", "cycles"):
        return Unit(multiplier, divisor, HERTZ)
    return Unit(multiplier, divisor, f"{above.base}/{below.base}")


def _atom(word: str, whole: str) -> _Atom:
    known = _SPELLINGS.get(word)
    if known is not None:
        return known
    if _LOOKS_DIMENSIONED.fullmatch(word):
        raise UnknownUnit(f"unknown unit {whole!r}")
    return _Atom(1, 1, word, "count")


def to_base(value: float | Decimal, unit: str) -> Quantity:
    """`value` in base units: (1767, "ns") is Quantity(1.767e-6, "s").

    A Decimal is converted without rounding before the last step.  Raises UnknownUnit.
    """
    known = parse_unit(unit)
    if isinstance(value, Decimal) and abs(value.adjusted()) < MAX_EXACT_DIGITS:
        numerator, denominator = value.as_integer_ratio()
        # Python rounds a quotient of integers once, and correctly.
        return Quantity(numerator * known.multiplier / (denominator * known.divisor), known.base)
    if isinstance(value, Decimal):
        with localcontext() as context:
            context.prec = 60
            return Quantity(float(value * known.multiplier / known.divisor), known.base)
    return Quantity(value * known.multiplier / known.divisor, known.base)


def to_seconds(value: float | Decimal, unit: str) -> float:
    """A time in seconds; raises UnknownUnit if `unit` is no time."""
    quantity = to_base(value, unit)
    if quantity.unit != SECOND:
        raise UnknownUnit(f"{unit!r} is not a unit of time")
    return quantity.value


# For people ---------------------------------------------------------------------------------

_LARGE = (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_SMALL = (("", 1.0), ("m", 1e-3), ("µ", 1e-6), ("n", 1e-9))


def format_seconds(seconds: float) -> str:
    """`1.767 µs`, `7.331 ms`, `2.5 s`: four significant digits; `1 h 02 min` above 90 s."""
    if abs(seconds) >= 90:
        minutes = round(seconds / 60)
        return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
    if seconds == 0:
        return "0 s"
    for prefix, scale in _SMALL:
        # Rounding first: 999.96 µs is shown as 1 ms, not as 1000 µs.
        if abs(float(f"{seconds / scale:.4g}")) >= 1:
            return f"{_short(seconds / scale)} {prefix}s"
    return f"{_short(seconds / 1e-9)} ns"


def format_fixed(value: float, decimals: int) -> str:
    """With so many decimals, and more below 1 where four significant digits need them: `7.331`,
    `0.004786`."""
    if 0 < abs(value) < 1:
        exponent = f"{value:.3e}".rpartition("e")[2]  # of the rounded value
        decimals = max(decimals, 3 - int(exponent))
    return f"{value:.{decimals}f}"


def format_bytes_per_second(rate: float) -> str:
    """`522.1 GB/s`."""
    return _scaled(rate, "B/s")


def format_quantity(quantity: Quantity) -> str:
    """Any quantity in base units: `1.082 GB` (kilo is 1000), `1.765 GHz`, `84.1 %`; a count is
    followed by its own unit, `18,743,296 inst`, and a fraction keeps four significant digits."""
    value, unit = quantity.value, quantity.unit
    if unit == SECOND:
        return format_seconds(value)
    if unit in _SCALED:
        return _scaled(value, _SCALED[unit])
    if unit == PERCENT:
        return f"{value:.1f} %"
    whole = value == round(value) and abs(value) < 1e15
    count = f"{value:,.{0 if whole else 1}f}" if whole or abs(value) >= 1000 else _short(value)
    return f"{count} {unit}".rstrip()


_SCALED = {HERTZ: "Hz", BYTE: "B", BYTE_PER_SECOND: "B/s"}


def _scaled(value: float, unit: str) -> str:
    for prefix, scale in _LARGE:
        if abs(float(f"{value / scale:.4g}")) >= 1:
            return f"{_short(value / scale)} {prefix}{unit}"
    return f"{_short(value)} {unit}"


def _short(value: float) -> str:
    return f"{value:.4g}"


def aligned_seconds(seconds: float) -> str:
    """`format_seconds` for a column: `195.4 µs`, `197.0 µs`."""
    number, _, unit = format_seconds(seconds).partition(" ")
    whole = seconds == 0 or " " in unit  # as in `1 h 02 min`
    return f"{number} {unit}" if whole else f"{float(number):#.4g} {unit}"
