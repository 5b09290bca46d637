"""Separators: every style is read, and nothing with two readings is guessed."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.errors import ProfileFormatError
from fa_tune.profile.ncu.number_format import NumberCell, NumberStyle, decide_style, looks_numeric
from tests.profile.ncu.ncu_text import STYLES, number


def cells(*texts: str) -> list[NumberCell]:
    return [NumberCell(t) for t in texts]


@pytest.mark.parametrize(
    ("others", "text", "value"),
    [
        (["1,767,221,637.82"], "1,234", "1234"),
        (["0.95"], "1,234", "1234"),
        (["80.72", "21,248"], "1.234", "1.234"),
        (["1.767.221.637,82"], "1.234", "1234"),
        (["80,72"], "1.234", "1234"),
        (["80,72"], "1,234", "1.234"),
        (["1\u202f767\u202f221,82"], "1,234", "1.234"),
        (["1\u00a0767"], "12,5", "12.5"),
        (["1'767'221"], "1.234", "1.234"),
        (["1\u2019767.5"], "21\u2019248", "21248"),
        (["21 248.5"], "1 234", "1234"),
        (["1234.5"], "1.234", "1.234"),
        (["1.5e+09"], "1,234", "1234"),
        (["0,001"], "1.234", "1234"),
    ],
)
def test_the_rest_of_the_file_decides(others: list[str], text: str, value: str) -> None:
    style = decide_style(cells(text, *others))
    assert style.value(text) == Decimal(value)


@pytest.mark.parametrize(
    "texts",
    [["1.234"], ["1,234"], ["-21,248", "128"], ["1.234", "5.678"], ["1.234", "no data", "0x10"]],
)
def test_two_readings_are_refused_by_name(texts: list[str]) -> None:
    with pytest.raises(ProfileFormatError, match=r"may mean .* no other value") as caught:
        decide_style(cells(*texts))
    assert repr(texts[0]) in str(caught.value)


@pytest.mark.parametrize(
    "texts",
    [["80.72", "80,72"], ["1,234.5", "1.234,5"], ["0.5", "1.234.567"], ["1'234.5", "1,234,567.5"]],
)
def test_two_styles_in_one_file_are_refused(texts: list[str]) -> None:
    with pytest.raises(ProfileFormatError, match="two styles") as caught:
        decide_style(cells(*texts))
    assert repr(texts[0]) in str(caught.value)
    assert repr(texts[1]) in str(caught.value)


def test_a_count_has_no_fraction() -> None:
    """A whole number of nanoseconds, bytes or threads decides where its pattern cannot."""
    style = decide_style([NumberCell("1.024", whole=True), NumberCell("3.248")])
    assert style.value("3.248") == 3248
    # 1.000 is whole either way and decides nothing.
    with pytest.raises(ProfileFormatError):
        decide_style([NumberCell("1.000", whole=True), NumberCell("3.248")])
    # Evidence outranks it: a sum printed with a fraction is no contradiction.
    assert decide_style([NumberCell("12.50", whole=True)]).decimal == "."
    # Once whole is whole, whatever else has the same text.
    twice = [NumberCell("1.024", whole=True), NumberCell("3.248"), NumberCell("1.024")]
    assert decide_style(twice) == style


def test_a_known_decimal_mark_decides() -> None:
    assert decide_style(cells("1.234"), decimal=".").value("1.234") == Decimal("1.234")
    assert decide_style(cells("1.234"), decimal=",").value("1.234") == 1234
    with pytest.raises(ProfileFormatError, match="decimal mark"):
        decide_style(cells("80.72"), decimal=",")
    assert decide_style([]) == NumberStyle(".", "comma")


@pytest.mark.parametrize(
    "text", ["1,23,456", "1,,234", "1.2.3", "580.159.03", "01,234", "1,234,56", "0,123,456", "007"]
)
def test_what_is_no_number_in_any_style_decides_nothing(text: str) -> None:
    style = decide_style(cells(text))
    assert style.value(text) is None


@pytest.mark.parametrize("text", ["", "-", "1a", "n/a", "9.0 GB", "1 (2; 3)", "1,", ".5", "0x1f"])
def test_what_does_not_look_like_a_number(text: str) -> None:
    assert not looks_numeric(text)


@given(st.sampled_from(sorted(STYLES)), st.lists(st.integers(0, 10**9), min_size=1, max_size=8))
def test_whole_numbers_are_read_right_or_refused(name: str, values: list[int]) -> None:
    """Without a decimal mark in the whole file a style may be undecidable, never misread."""
    texts = [number(v, STYLES[name], decimals=None) for v in values]
    try:
        style = decide_style(cells(*texts))
    except ProfileFormatError:
        return
    assert [style.value(t) for t in texts] == values


@given(st.text(alphabet="0123456789.,' \u202f-+e", max_size=12))
def test_no_text_is_read_in_two_ways(text: str) -> None:
    """A file of one value is read only if all styles agree on it."""
    try:
        value = decide_style(cells(text)).value(text)
    except ProfileFormatError:
        return
    if value is not None:
        swapped = text.translate(str.maketrans(".,", ",."))
        try:
            other = decide_style(cells(swapped)).value(swapped)
        except ProfileFormatError:
            pytest.fail(f"{text!r} is accepted, its mirror image {swapped!r} is not")
        assert other == value
