"""The fields of a measurement in a journal line, beside its samples and counters.

A line holds `conditions` (texts by name) and each of `FIELDS` that is set, as a JSON value.
Older lines held these fields as texts among the conditions, some under another name:

    relative       "[0.98, 1.01]"   JSON list     preference     "3"
    default_s      "[1e-3]"         JSON list     host_launch_s  "1.2e-05"
    search         text             calibrated    "0.952381", now `scaled_by`
    replayed_from  text             board         a GPU's UUID, now `gpu_uuid`

Such lines are read as before and give the same values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from fa_tune.core.model import Measurement


def _text(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r} is not a text")
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _numbers(value: Any) -> tuple[float, ...]:
    if type(value) is not list:
        raise ValueError(f"{value!r} is not a list")
    return tuple(_number(v) for v in value)


FIELDS: dict[str, Callable[[Any], Any]] = {
    "relative": _numbers,
    "preference": _whole,
    "host_launch_s": _number,
    "search": _text,
    "gpu_uuid": _text,
    "scaled_by": _number,
    "replayed_from": _text,
    "default_s": _numbers,
}
# Name among the conditions of an old line -> the field.
_OLD_NAMES = {name: name for name in FIELDS if name not in ("gpu_uuid", "scaled_by")} | {
    "board": "gpu_uuid",
    "calibrated": "scaled_by",
}


def encode(measurement: Measurement) -> dict[str, Any]:
    """`conditions` and the fields that are set.  Raises ValueError for a condition that would
    be read back as a field."""
    if taken := sorted(_OLD_NAMES.keys() & measurement.conditions.keys()):
        raise ValueError(f"{taken[0]!r} is a field of a measurement, not a condition")
    found: dict[str, Any] = {"conditions": dict(measurement.conditions)}
    for name in FIELDS:
        value = getattr(measurement, name)
        if value not in ((), "", None):
            found[name] = value
    return found


def decode(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What `encode` wrote, or an older version did, as arguments of `Measurement`.  Raises
    ValueError for a value of another type."""
    conditions = raw["conditions"]
    found = {name: read(raw[name]) for name, read in FIELDS.items() if name in raw}
    if not _OLD_NAMES.keys().isdisjoint(conditions):
        conditions = dict(conditions)
        for old, name in _OLD_NAMES.items():
            if old in conditions:
                found[name] = FIELDS[name](_from_text(name, _text(conditions.pop(old))))
    return {"conditions": conditions, **found}


def _from_text(name: str, text: str) -> Any:
    return text if FIELDS[name] is _text else json.loads(text)
