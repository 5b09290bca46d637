"""Values and their JSON form, both ways; and that the schema of a type agrees with both."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fa_tune.core import codec
from fa_tune.core.codec import POSITIVE, Figure, Keyed
from fa_tune.core.errors import FaTuneError, shown


class Colour(StrEnum):
    RED = "red"


class Type(IntEnum):
    HALF = 5


@dataclass(frozen=True)
class Inner:
    number: float
    figure: Figure = 0.0


class Place(NamedTuple):
    x: int
    y: int


@dataclass(frozen=True)
class ByKey(Keyed):
    n: int

    @property
    def key(self) -> str:
        return f"a{self.n}"

    @classmethod
    def from_key(cls, key: str) -> ByKey:
        if not key.startswith("a"):
            raise ValueError(f"no key: {key}")
        return cls(int(key[1:]))


@dataclass(frozen=True)
class Whole:
    """Something of everything."""

    text: str
    flag: bool
    several: tuple[Inner, ...]
    pair: tuple[int, str]
    by_name: Mapping[str, tuple[float, ...]]
    colour: Colour
    kind: Type
    word: Literal["a", 1]
    maybe: Inner | None = None
    either: int | str = 0
    told: Annotated[str, "for a reader"] = ""
    inside: tuple[Whole, ...] = ()
    place: Place | None = None
    more: Annotated[float, POSITIVE] = 1.0
    keyed: ByKey = ByKey(1)
    free: Mapping[str, Any] = field(default_factory=dict)


def _around(outer: Whole, inside: list[Whole]) -> Whole:
    return Whole(**{**vars(outer), "inside": tuple(inside)})


numbers = st.floats(allow_nan=False, allow_infinity=False)
inners = st.builds(Inner, numbers, st.floats())
plain = st.builds(
    Whole,
    *(st.text(), st.booleans(), st.lists(inners, max_size=3).map(tuple)),
    st.tuples(st.integers(), st.text()),
    st.dictionaries(st.text(), st.lists(numbers, max_size=2).map(tuple), max_size=2),
    *(st.sampled_from(Colour), st.sampled_from(Type), st.sampled_from(["a", 1])),
    *(st.none() | inners, st.integers() | st.text(), st.text(), st.just(())),
    *(st.builds(Place, st.integers(), st.integers()), st.floats(1e-300, 1e300)),
    st.builds(ByKey, st.integers()),
)
wholes = st.recursive(
    plain, lambda inside: st.builds(_around, plain, st.lists(inside, max_size=2)), max_leaves=4
)
VALID = Draft202012Validator(codec.schema(Whole))


@given(wholes)
def test_any_value_comes_back(value: Whole) -> None:
    raw = json.loads(json.dumps(codec.dump(value), allow_nan=False))
    assert repr(codec.load(Whole, raw)) == repr(value), "by repr: NaN is unequal to itself"
    VALID.validate(raw)


GOOD: Mapping[str, Any] = {
    "text": "t",
    "flag": True,
    "several": [{"number": 1, "figure": "nan"}],
    "pair": [1, "x"],
    "by_name": {"a": [1.5]},
    "colour": "red",
    "kind": "HALF",
    "word": "a",
}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("text", 1, "text: 1 is not a text"),
        ("text", None, "text: None is not a text"),
        ("flag", 1, "flag: 1 is not true or false"),
        ("several", [{"number": True}], "several[0].number: True is not a number"),
        ("several", [{"number": "nan"}], "several[0].number: 'nan' is not a number"),
        ("several", [{"number": math.inf}], "several[0].number: a number is out of range"),
        ("several", [{"number": 10**400}], "several[0].number: a number is out of range"),
        ("several", [{"number": 1}, {}], "several[1].number: the field is missing"),
        ("several", [{"number": 1, "figure": "x"}], "several[0].figure: 'x' is not a number"),
        ("several", [{"number": 1, "colour": 2}], "several[0].colour: there is no such field"),
        ("several", "abc", "several: 'abc' is not a list"),
        ("pair", [1], "pair: [1] has not 2 values"),
        ("pair", [1.0, "x"], "pair[0]: 1.0 is not a whole number"),
        ("by_name", {"a": [None]}, "by_name.a[0]: None is not a number"),
        ("by_name", [], "by_name: [] is not an object"),
        ("colour", "blue", "colour: 'blue' is none of red"),
        ("kind", 5, "kind: 5 is none of HALF"),
        ("word", [], "word: [] is none of a, 1"),
        ("word", True, "word: True is none of a, 1"),
        ("maybe", {}, "maybe.number: the field is missing"),
        ("either", 1.5, "either: 1.5 is not a text"),
        ("place", [1, 2, 3], "place: [1, 2, 3] has not 2 values"),
        ("place", [1, "2"], "place[1]: '2' is not a whole number"),
        ("more", 0, "more: 0 is not above 0"),
        ("keyed", "b", "keyed: no key: b"),
        ("keyed", 1, "keyed: 1 is not a text"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(name: str, value: Any, said: str) -> None:
    assert codec.load(Whole, GOOD).several[0].number == 1.0
    with pytest.raises(ValueError, match=r"^\S") as error:
        codec.load(Whole, {**GOOD, name: value})
    assert str(error.value) == said


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', "[" * 100_000, "{", b"\xff"])
def test_a_text_that_readers_understand_differently_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - of several kinds
        codec.parse(text)


def test_a_value_without_a_form_is_not_written() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        codec.dump({"a": object()})


@given(st.sampled_from(sorted(GOOD)), st.recursive(st.none() | st.booleans() | st.text(), st.lists))
def test_what_the_schema_refuses_is_not_read(name: str, value: Any) -> None:
    raw = {**GOOD, name: value}
    try:
        codec.load(Whole, raw)
    except ValueError:
        return
    VALID_BUT_SPARSE.validate(raw)


def _without_required(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {k: _without_required(v) for k, v in schema.items() if k != "required"}
    return schema


VALID_BUT_SPARSE = Draft202012Validator(_without_required(codec.schema(Whole)))


def test_what_is_nested_too_deeply_is_refused_and_what_is_not_is_read() -> None:
    for opening, closing in ("[]", ('{"a":', "}")):
        for levels in (codec.MOST_LEVELS, codec.MOST_LEVELS + 1, 500, 100_000):
            text = f"{opening * levels}1{closing * levels}"
            if levels <= codec.MOST_LEVELS:
                assert json.dumps(codec.parse(text), separators=(",", ":")) == text
            else:
                with pytest.raises(ValueError, match="nested too deeply"):
                    codec.parse(text)


@given(st.text())
def test_what_is_printed_moves_no_cursor_and_a_document_stays_one(text: str) -> None:
    said = str(FaTuneError(text))
    assert not any(unicodedata.category(c)[0] == "C" and c not in "\n\t" for c in said)
    assert said == text or not text.isprintable()
    assert shown(said) == said
    document = json.dumps({text: text}, ensure_ascii=False)
    assert json.loads(shown(document)) == {text: text}
    for c in "\x1b\r\x9b\u202e\u2028\u200f\ufeff\ud800\U000e0041":
        assert shown(c) == json.dumps(c).strip('"')
