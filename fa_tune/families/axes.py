"""A search space: axes expanded to configs of a family's class."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING
from enum import Enum
from typing import Any, TypeVar

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType

C = TypeVar("C")
Axes = Mapping[str, Sequence[Any]]  # field → its values

MAX_VALUE = 65536
_FLAGS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


def check_fields(axes: Iterable[str], names: Sequence[str]) -> None:
    """Raise InvalidConfig for an axis that is none of the fields' names."""
    for axis in axes:
        if axis not in names:
            near = difflib.get_close_matches(axis, names, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; fields: {', '.join(names)}"
            raise InvalidConfig(f"no config field named {axis!r}{hint}")


def expand(config_class: type[C], axes: Axes) -> Iterator[C]:
    """Every combination of the axes' values, the last field changing fastest.

    Fields nest in the config's order, whatever the order of `axes`; values keep theirs, and a
    repeated value counts once.  A field with a default may be left out.  Raises InvalidConfig
    for an unknown or missing field and for an axis without values, before the first config.
    """
    fields = dataclasses.fields(config_class)  # type: ignore[arg-type]
    names = [f.name for f in fields]
    check_fields(axes, names)
    missing = [f.name for f in fields if f.name not in axes and f.default is MISSING]
    if missing:
        raise InvalidConfig(f"no values given for {', '.join(missing)}")
    for axis, values in axes.items():
        if not values:
            raise InvalidConfig(f"axis {axis} has no values")
    chosen = [tuple(dict.fromkeys(axes.get(f.name, (f.default,)))) for f in fields]
    return (config_class(*point) for point in itertools.product(*chosen))


def read_value(config_class: type[Any], name: str, word: str) -> Any:
    """One value of an axis as people write it: a whole number, true or false, a dtype or the
    name of an enum's member, whichever the field is.  A name that is no field gives the word
    back (`expand` refuses it with the nearest one).  Raises InvalidConfig."""
    kind = typing.get_type_hints(config_class).get(name, str)
    if kind is bool:
        if word.lower() not in _FLAGS:
            raise InvalidConfig(f"axis {name}: {word!r} is neither true nor false")
        return _FLAGS[word.lower()]
    if kind is DType:
        return DType.from_string(word)
    if kind is int:
        if not word.isascii() or not word.isdigit() or len(word) > 9 or int(word) > MAX_VALUE:
            raise InvalidConfig(
                f"axis {name}: {word[:40]!r} is not a whole number from 0 to {MAX_VALUE}"
            )
        return int(word)
    if isinstance(kind, type) and issubclass(kind, Enum):
        members = {member.name.lower(): member for member in kind}
        if word.lower() not in members:
            allowed = ", ".join(members)
            raise InvalidConfig(f"axis {name}: {word[:40]!r} is not one of {allowed}")
        return members[word.lower()]
    return word
