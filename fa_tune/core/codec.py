"""The JSON form of values, and the schema of a type: one rule for all that processes and files of
this program exchange.

    dataclass    object with all its fields; when read, one that has a default may be absent
    tuple        array; `tuple[X, ...]` of any length, also where a type says Sequence
    Mapping      object; its keys are texts
    enumeration  its value where that is a text, else its name
    named tuple  array of its fields
    float        number; NaN and the infinities, as texts, only where the type is `Figure`
    None         null
    `Keyed`      the text of its key

Reading is strict: no value is converted, and no unknown field let pass.  What a value has to keep
beside its type is a `Rule` in the annotation.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NoReturn,
    Self,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

T = TypeVar("T")
Reader = Callable[[Any], Any]
Figure = Annotated[float, "may be NaN or infinite"]
NOT_FINITE = ("nan", "inf", "-inf")
MOST_LEVELS = 50  # of objects and arrays in each other: who reads one may call itself for each
TOO_DEEP = "nested too deeply"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # any but tab and line feed
_SHOWN = 60  # characters of a value in a message


class Keyed:
    """Base of dataclasses that are written as a text, their `key`."""

    __slots__ = ()

    @property
    def key(self) -> str:
        """The text."""
        raise NotImplementedError

    @classmethod
    def from_key(cls, key: str) -> Self:
        """The value of a text; raises ValueError."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Rule:
    """What a value has to keep, as in `Annotated[float, POSITIVE]`: `otherwise` is what is wrong
    with one that it does not hold of, `schema` the same for a JSON Schema."""

    holds: Callable[[Any], bool]
    otherwise: str
    schema: Mapping[str, Any]


POSITIVE = Rule(lambda value: value > 0, "is not above 0", {"exclusiveMinimum": 0})
NOT_NEGATIVE = Rule(lambda value: value >= 0, "is below 0", {"minimum": 0})
FILLED = Rule(bool, "is empty", {"minLength": 1})


def dump(value: Any) -> Any:
    """A value as what `json.dumps` takes; raises TypeError for a type that has no form."""
    if isinstance(value, Enum):
        return _enum(value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Keyed):
        return value.key
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: dump(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, Mapping):
        return {dump(k): dump(v) for k, v in value.items()}
    if isinstance(value, Sequence):
        return [dump(v) for v in value]
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def load(kind: type[T], raw: Any) -> T:
    """The value of a type that `dump` made `raw` of; raises ValueError, one line that begins with
    the place of what does not fit."""
    return cast(T, _reader(cast(Any, kind))(raw))


def parse(text: str | bytes) -> Any:
    """What a JSON text says, as RFC 8259 has it: no field twice, no NaN.  Raises ValueError, also
    for what is nested too deeply."""
    try:
        raw = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except json.JSONDecodeError as e:
        raise ValueError(f"line {e.lineno}, column {e.colno}: not JSON: {e.msg}") from None
    level = [raw]
    for _ in range(MOST_LEVELS):
        level = [part for value in level for part in _parts(value) if type(part) in (dict, list)]
        if not level:
            return raw
    raise ValueError(TOO_DEEP)


def check_printable(raw: Any) -> None:
    """Raise ValueError for a text in a document that would do something to a terminal."""
    if isinstance(raw, str) and _CONTROL.search(raw):
        raise ValueError(f"{_shown(raw)} has a control character")
    for part in [*raw, *raw.values()] if type(raw) is dict else _parts(raw):
        check_printable(part)


def _parts(value: Any) -> Collection[Any]:
    return value.values() if type(value) is dict else value if type(value) is list else ()


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"field {twice!r} is given twice in one object")
    return fields


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number that JSON has")


def _enum(member: Enum) -> str:
    return member.value if isinstance(member.value, str) else member.name


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind) if f.init)


def _needed(kind: type) -> tuple[str, ...]:
    """The fields that have no default."""
    return tuple(
        f.name
        for f in dataclasses.fields(kind)
        if f.init and f.default is f.default_factory is MISSING
    )


# Readers -----------------------------------------------------------------------------------------


@cache
def _reader(kind: Any) -> Reader:
    """What reads values of a type: made once, since journals have thousands of them."""
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda raw: raw
    if kind == Figure:
        return lambda raw: float(raw) if type(raw) is float or raw in NOT_FINITE else _number(raw)
    if origin is Annotated:
        rules = [rule for rule in args[1:] if isinstance(rule, Rule)]
        return _ruled(_reader(args[0]), rules) if rules else _reader(args[0])
    if origin is Literal:
        return _one_of(args)
    if origin in (Union, UnionType):
        return _union([_reader(arg) for arg in args if arg is not NoneType], NoneType in args)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*map(_reader, args))
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _array(origin, args)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _one_of({_enum(member): member for member in kind})
    if isinstance(kind, type) and issubclass(kind, Keyed):
        return lambda raw: cast(Any, kind).from_key(_PLAIN[str](raw))
    if hasattr(kind, "_fields"):
        each = _array(tuple, tuple(get_type_hints(kind).values()))
        return lambda raw: kind(*each(raw))
    if dataclasses.is_dataclass(kind):
        return _object(cast(type, kind))
    raise TypeError(f"{kind} has no JSON form")


def _number(raw: Any) -> float:
    if type(raw) not in (float, int):
        raise ValueError(f"{_shown(raw)} is not a number")
    try:
        value = float(raw)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError("a number is out of range")
    return value


def _exact(kind: type, what: str) -> Reader:
    def read(raw: Any) -> Any:
        if type(raw) is not kind:
            raise ValueError(f"{_shown(raw)} is not {what}")
        return raw

    return read


def _one_of(values: Collection[Any]) -> Reader:
    named = values if isinstance(values, Mapping) else {value: value for value in values}
    known = {(type(name), name): value for name, value in named.items()}  # 1 is not True

    def read(raw: Any) -> Any:
        if type(raw) not in (str, int, bool) or (type(raw), raw) not in known:
            raise ValueError(f"{_shown(raw)} is none of {', '.join(map(str, named))}")
        return known[type(raw), raw]

    return read


_PLAIN: Mapping[Any, Reader] = {
    float: _number,
    int: _exact(int, "a whole number"),
    str: _exact(str, "a text"),
    bool: _exact(bool, "true or false"),
    Path: lambda raw: Path(_reader(str)(raw)),
}


def _ruled(reader: Reader, rules: Sequence[Rule]) -> Reader:
    def read(raw: Any) -> Any:
        value = reader(raw)
        if broken := next((rule for rule in rules if not rule.holds(value)), None):
            raise ValueError(f"{_shown(raw)} {broken.otherwise}")
        return value

    return read


def _union(readers: Sequence[Reader], with_none: bool) -> Reader:
    def read(raw: Any) -> Any:
        if raw is None and with_none:
            return None
        for reader in readers[:-1]:
            try:
                return reader(raw)
            except ValueError:
                continue
        return readers[-1](raw)

    return read


def _mapping(read_key: Reader, read_value: Reader) -> Reader:
    def read(raw: Any) -> Any:
        if type(raw) is not dict:
            raise ValueError(f"{_shown(raw)} is not an object")
        return {read_key(k): _at(k, read_value, v) for k, v in raw.items()}

    return read


def _array(origin: type, args: tuple[Any, ...]) -> Reader:
    each = _reader(args[0]) if origin is not tuple or args[1:] == (...,) else None
    several = [] if each else [_reader(arg) for arg in args]

    def read(raw: Any) -> Any:
        if type(raw) not in (list, tuple):
            raise ValueError(f"{_shown(raw)} is not a list")
        if each is None and len(raw) != len(several):
            raise ValueError(f"{_shown(raw)} has not {len(several)} values")
        try:
            if each is not None:
                return tuple(map(each, raw))
            return tuple([reader(v) for reader, v in zip(several, raw, strict=True)])
        except ValueError:  # which one it is takes longer to say
            readers = several or [cast(Reader, each)] * len(raw)
            return tuple(
                _at(i, reader, v) for i, (reader, v) in enumerate(zip(readers, raw, strict=True))
            )

    return read


def _object(kind: type) -> Reader:
    needed = _needed(kind)

    def read(raw: Any) -> Any:
        readers = _readers(kind)
        if isinstance(raw, kind):  # a part that was read before
            return raw
        if type(raw) is not dict:
            raise ValueError(f"{_shown(raw)} is not an object")
        if unknown := sorted(raw.keys() - readers.keys(), key=str):
            raise Misfit(str(unknown[0])[:_SHOWN], "there is no such field")
        if missing := [name for name in needed if name not in raw]:
            raise Misfit(missing[0], "the field is missing")
        return kind(**{name: _at(name, readers[name], value) for name, value in raw.items()})

    return read


@cache
def _readers(kind: type) -> dict[str, Reader]:
    """The reader of each field; late, since a type may hold itself."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: _reader(hints[name]) for name in _names(kind)}


def _at(place: str | int, reader: Reader, raw: Any) -> Any:
    try:
        return reader(raw)
    except ValueError as error:
        inner = getattr(error, "place", "")
        here = f"[{place}]" if isinstance(place, int) else str(place)
        joined = f"{here}{inner}" if inner.startswith("[") else f"{here}.{inner}".rstrip(".")
        raise Misfit(joined, getattr(error, "what", str(error))) from None


class Misfit(ValueError):
    """What does not fit: `place` as `measurement.samples_s[3]`, `what` is wrong with it."""

    def __init__(self, place: str, what: str) -> None:
        shown = place if place.isprintable() else repr(place)[1:-1]  # a key may be any text
        super().__init__(f"{shown}: {what}")
        self.place, self.what = place, what


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


# Schemas -----------------------------------------------------------------------------------------

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema(kind: Any) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a type as `dump` writes it."""
    known: dict[str, dict[str, Any]] = {}
    return {"$schema": DIALECT, **_schema(kind, known), "$defs": known}


def _schema(kind: Any, known: dict[str, dict[str, Any]]) -> dict[str, Any]:
    origin, args = get_origin(kind), get_args(kind)
    if kind is Any:
        return {}
    if kind == Figure:
        return {"anyOf": [{"type": "number"}, {"enum": list(NOT_FINITE)}]}
    if origin is Annotated:
        more: dict[str, Any] = {}
        for told in args[1:]:
            more |= told.schema if isinstance(told, Rule) else {"description": told}
        return {**_schema(args[0], known), **more}
    if origin is Literal:
        return {"enum": list(args)} if args[1:] else {"const": args[0]}
    if origin in (Union, UnionType):
        return {"anyOf": [_schema(arg, known) for arg in args]}
    if kind in _WORDS:
        return {"type": _WORDS[kind]}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(args[1], known)}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        if origin is not tuple or args[1:] == (...,):
            return {"type": "array", "items": _schema(args[0], known)}
        return _several([_schema(arg, known) for arg in args])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [_enum(member) for member in kind]}
    if isinstance(kind, type) and issubclass(kind, Keyed):
        return {"type": "string"}
    if hasattr(kind, "_fields"):
        return _several([_schema(hint, known) for hint in get_type_hints(kind).values()])
    name = kind.__name__
    if name not in known:
        known[name] = {}  # it may hold itself
        hints = get_type_hints(kind, include_extras=True)
        known[name] = {
            "type": "object",
            "description": " ".join((kind.__doc__ or "").split()),
            "properties": {n: _schema(hints[n], known) for n in _names(kind)},
            "required": list(_needed(kind)),
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def _several(each: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    n = len(each)
    return {"type": "array", "prefixItems": each, "minItems": n, "maxItems": n}


_WORDS = {
    str: "string",
    Path: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    NoneType: "null",
}
