"""The fields of a measurement in a journal line, beside its samples and counters.

A line holds `conditions` (texts by name) and `fields`: each of `FIELDS` that is set, as a JSON
value.  An older line has no `fields`; it held them as texts among the conditions, some under
another name:

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

from fa_tune.core.inputs import NORMAL
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


def _texts(value: Any) -> dict[str, str]:
    if type(value) is not dict:
        raise ValueError(f"{value!r} is not an object")
    return {_text(name): _text(text) for name, text in value.items()}


FIELDS: dict[str, Callable[[Any], Any]] = {
    "relative": _numbers,
    "preference": _whole,
    "host_launch_s": _number,
    "search": _text,
    "gpu_uuid": _text,
    "scaled_by": _number,
    "replayed_from": _text,
    "default_s": _numbers,
    "inputs": _text,
    "held_out_s": _numbers,
    "held_out_relative": _numbers,
    "to_own_inputs": _numbers,
    "versions": _texts,
    "baseline": _text,
}
_NEW = {
    *("gpu_uuid", "scaled_by", "held_out_s", "held_out_relative", "to_own_inputs"),
    *("versions", "inputs", "baseline"),
}
# Name among the conditions of an old line -> the field.
_OLD_NAMES = {name: name for name in FIELDS if name not in _NEW} | {
    "board": "gpu_uuid",
    "calibrated": "scaled_by",
}


def encode(measurement: Measurement) -> dict[str, Any]:
    """`conditions`, and `fields` with those that are set."""
    values = {name: getattr(measurement, name) for name in FIELDS}
    values["versions"] = dict(measurement.versions)
    values["inputs"] = "" if measurement.inputs == str(NORMAL) else measurement.inputs
    return {
        "conditions": dict(measurement.conditions),
        "fields": {name: v for name, v in values.items() if v not in ((), "", {}, None)},
    }


def decode(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What `encode` wrote, or an older version did, as arguments of `Measurement`.  Raises
    ValueError for a value of another type."""
    conditions = dict(raw["conditions"])
    if "fields" in raw:
        if unknown := sorted(raw["fields"].keys() - FIELDS.keys()):
            raise ValueError(f"unknown field {unknown[0]!r}")
        found = {name: FIELDS[name](value) for name, value in raw["fields"].items()}
    else:
        found = {
            name: FIELDS[name](_from_text(name, _text(conditions.pop(old))))
            for old, name in _OLD_NAMES.items()
            if old in conditions
        }
    return {"conditions": conditions, **found}


def _from_text(name: str, text: str) -> Any:
    return text if FIELDS[name] is _text else json.loads(text)
