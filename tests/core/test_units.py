"""Unit conversions: every spelling seen in the wild, and refusal of those that are not known."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.errors import ProfileFormatError, UnknownUnit
from fa_tune.core.model import Quantity
from fa_tune.core.units import (
    format_bytes_per_second,
    format_fixed,
    format_quantity,
    format_seconds,
    parse_unit,
    to_base,
    to_seconds,
)

# By what they stand for; counts keep the unit they came with.
SAME = {
    (1e-9, "s"): "ns nsecond",
    (1e-6, "s"): "us usecond \u00b5s \u03bcs",
    (1e-3, "s"): "ms msecond",
    (1, "s"): "s second",
    (1, "hz"): "hz cycle/second",
    (1e3, "hz"): "Khz",
    (1e6, "hz"): "Mhz cycle/usecond",
    (1e9, "hz"): "Ghz GHz cycle/nsecond",
    (1, "byte"): "byte",
    (1e3, "byte"): "Kbyte",
    (1e6, "byte"): "Mbyte",
    (1e9, "byte"): "Gbyte",
    (1e12, "byte"): "Tbyte",
    (1, "byte/s"): "byte/s byte/second",
    (1e3, "byte/s"): "Kbyte/second",
    (1e9, "byte/s"): "Gbyte/second Gbyte/s byte/nsecond",
    (1e12, "byte/s"): "Tbyte/second",
    (1e3, "byte/block"): "Kbyte/block",
    (1e9, "sector/s"): "sector/nsecond",
}
KEPT = "byte/block % cycle register/thread inst inst/cycle warp block thread sector branches SM"
SPELLINGS = [
    *((unit, factor, base) for (factor, base), units in SAME.items() for unit in units.split()),
    *((unit, 1, unit) for unit in (*KEPT.split(), "cluster", "pass", "")),
]


@pytest.mark.parametrize(("unit", "factor", "base"), SPELLINGS)
def test_every_spelling(unit: str, factor: float, base: str) -> None:
    quantity = to_base(3, unit)
    assert quantity.unit == base
    assert quantity.value == pytest.approx(3 * factor, rel=1e-15)


@pytest.mark.parametrize(
    "unit",
    [
        "fsecond", "minute", "min", "hour", "Msecond", "KiB", "KB", "B", "bit", "Kbit/second",
        "Xhz", "rhz", "Gbyte/fortnight", "byte/parsec", "inst/minute", "jiffysec",
    ],
)  # fmt: skip
def test_unknown_times_rates_and_sizes_are_refused_by_name(unit: str) -> None:
    with pytest.raises(UnknownUnit, match="unknown unit") as caught:
        to_base(1.0, unit)
    assert repr(unit) in str(caught.value)
    assert isinstance(caught.value, ProfileFormatError)


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=6), st.sampled_from(SPELLINGS))
def test_decimals_convert_without_rounding_error(
    value: Decimal, row: tuple[str, float, str]
) -> None:
    unit, factor, _ = row
    assert to_base(value, unit).value == float(value * Decimal(str(factor)))


def test_seconds_are_read_from_times_alone() -> None:
    assert to_seconds(8.5, "us") == pytest.approx(8.5e-6)
    for unit in ("hz", "byte", ""):
        with pytest.raises(UnknownUnit, match=repr(unit)):
            to_seconds(1, unit)


def test_what_has_no_fraction() -> None:
    assert all(parse_unit(u).is_indivisible for u in ("ns", "nsecond", "byte", "cycle", "", "inst"))
    assert not any(
        parse_unit(u).is_indivisible for u in ("us", "s", "Kbyte", "hz", "Ghz", "%", "byte/s")
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (1.767e-6, "1.767 µs"),
        (7.331296e-3, "7.331 ms"),
        (0.9999999, "1 s"),
        (999.96e-6, "1 ms"),
        (3.2e-8, "32 ns"),
        (3e-11, "0.03 ns"),
        (2.5, "2.5 s"),
        (89.0, "89 s"),
        (120.0, "2 min"),
        (3720.0, "1 h 02 min"),
        (-1.5e-3, "-1.5 ms"),
    ],
)
def test_seconds_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_the_other_quantities_for_people() -> None:
    assert format_quantity(Quantity(1_082_348_916, "byte")) == "1.082 GB"
    assert format_quantity(Quantity(512, "byte")) == "512 B"
    assert format_bytes_per_second(522_067_199_584.06) == "522.1 GB/s"
    assert format_quantity(Quantity(1_764_804_248.31, "hz")) == "1.765 GHz"
    assert format_quantity(Quantity(84.13, "%")) == "84.1 %"
    assert format_quantity(Quantity(18_743_296, "inst")) == "18,743,296 inst"
    assert format_quantity(Quantity(849_828.42, "inst")) == "849,828.4 inst"
    assert format_quantity(Quantity(0.948, "inst")) == "0.948 inst"
    assert format_quantity(Quantity(4.9e-4, "s")) == "490 µs"
    assert format_quantity(Quantity(128, "register/thread")) == "128 register/thread"
    assert format_quantity(Quantity(7.76, "")) == "7.76"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (7.3311, "7.331"),
        (12.0, "12.000"),
        (0.00478628, "0.004786"),
        (0.25, "0.2500"),
        (0.09999999, "0.1000"),
    ],
)
def test_small_numbers_keep_four_significant_digits(value: float, text: str) -> None:
    assert format_fixed(value, 3) == text
