"""The auto-tuning community's formats: T4 results, and Kernel Tuner's cache files.

T4 (github.com/odgaard/TuningSchema, results-schema.json, version 1.0.0) holds one workload per
file: a list of configurations with times in milliseconds, an invalidity and measurements.
Kernel Tuner's simulation mode replays its own cache format, so that is written as well.
Switches are written as 0 and 1: both formats are read by programs that print values as keys.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fa_tune.core import codec
from fa_tune.core.codec import Rule
from fa_tune.core.errors import InvalidConfig, ProfileFormatError, StorageError, UnknownUnit
from fa_tune.core.files import read_bytes, replace_files, storage_errors
from fa_tune.core.model import Outcome
from fa_tune.core.units import to_seconds
from fa_tune.lab.space_table import RecordedWorkload, SpaceMeta, SpaceRow, SpaceTable, knob_types
from fa_tune.search.strategies.base import Knob

T4_VERSION = "1.0.0"
T4_SUFFIX = ".t4.json"
CACHE_SUFFIX = ".kernel_tuner.json"
OBJECTIVE = "time"
UNIT_SLIP = 30.0  # between a time and its runtimes; whatever else a tuner counts in is less
# Words for what `core.units` writes shortly; files in use have both spellings of the third.
_TIME_UNITS = {"microseconds": "us", "milliseconds": "ms", "miliseconds": "ms"}
_TIME_UNITS |= {"nanoseconds": "ns"}

# T4 names the reasons why a configuration gives no time.
_INVALIDITY = {
    Outcome.OK: "correct",
    Outcome.REJECTED: "constraints",
    Outcome.COMPILE_FAILED: "compile",
    Outcome.WRONG_RESULT: "correctness",
    Outcome.CRASHED: "runtime",
    Outcome.TIMED_OUT: "timeout",
}
_OUTCOME = {word: outcome for outcome, word in _INVALIDITY.items()} | {"": Outcome.OK}
# Kernel Tuner knows fewer, and keeps them in place of the time.
_CACHE_ERROR = {
    Outcome.REJECTED: "InvalidConfig",
    Outcome.COMPILE_FAILED: "CompilationFailedConfig",
}


def to_t4(recorded: RecordedWorkload, units: Mapping[str, str]) -> dict[str, Any]:
    """One workload as a T4 results object.  Facts and counters become measurements, counters
    with their `units`."""
    results = []
    for row in recorded.rows:
        values = [(f"fact.{n}", v, "") for n, v in row.facts.items()]
        values += [(n, v, units.get(n, "")) for n, v in row.counters.items()]
        if row.time_s is not None:
            values.insert(0, (OBJECTIVE, 1e3 * row.time_s, "ms"))
        results.append(
            {
                "configuration": {n: _plain(v) for n, v in row.knobs.items()},
                "times": {"runtimes": [1e3 * s for s in row.samples_s]},
                "invalidity": _INVALIDITY.get(row.outcome, "runtime"),
                "correctness": 0 if row.outcome is Outcome.WRONG_RESULT else 1,
                "measurements": [{"name": n, "value": v, "unit": u} for n, v, u in values],
                "objectives": [OBJECTIVE],
            }
        )
    return {
        "schema_version": T4_VERSION,
        "metadata": {"timeunit": "milliseconds", "space": recorded.name},
        "results": results,
    }


def to_kernel_tuner(recorded: RecordedWorkload, device: str) -> dict[str, Any]:
    """One workload as a cache file of Kernel Tuner, for `kernel_tuner.tune_cache`."""
    names = list(recorded.space.points[0].knobs)
    values = {n: sorted({_plain(row.knobs[n]) for row in recorded.rows}) for n in names}
    cache = {}
    for row in recorded.rows:
        entry: dict[str, Any] = {n: _plain(row.knobs[n]) for n in names}
        key = ",".join(str(v) for v in entry.values())
        if row.time_s is None:
            entry[OBJECTIVE] = _CACHE_ERROR.get(row.outcome, "RuntimeFailedConfig")
        else:
            entry[OBJECTIVE] = 1e3 * row.time_s
            entry["times"] = [1e3 * s for s in row.samples_s]
        # Kernel Tuner asks for these of every entry; nothing of them was recorded.
        zero = dict.fromkeys(("compile_time", "verification_time", "benchmark_time"), 0)
        cache[key] = entry | zero | {"strategy_time": 0, "framework_time": 0}
    return {
        "device_name": device,
        "kernel_name": "flash_forward_kernel",
        "problem_size": [1],
        "tune_params_keys": names,
        "tune_params": values,
        "objective": OBJECTIVE,
        "cache": cache,
    }


def export(recorded: RecordedWorkload, meta: SpaceMeta, folder: Path) -> tuple[Path, Path]:
    """Write both files; returns (T4 results, Kernel Tuner cache).  Raises StorageError."""
    name = "".join(c if c.isalnum() else "_" for c in recorded.name)
    device = meta.device.name if meta.device else "unknown"
    results, cache = folder / f"{name}{T4_SUFFIX}", folder / f"{name}{CACHE_SUFFIX}"
    documents = {
        results: to_t4(recorded, meta.units),
        cache: to_kernel_tuner(recorded, device),
    }
    with storage_errors(f"cannot write to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        replace_files({path: (json.dumps(d) + "\n").encode() for path, d in documents.items()})
    return results, cache


def _is_number(value: Any) -> bool:
    """Whether a double holds it: JSON has longer integers, and 1e999."""
    return type(value) in (int, float) and -sys.float_info.max <= value <= sys.float_info.max


_KNOB = Rule(
    lambda value: isinstance(value, bool | str) or _is_number(value),
    "is neither a number nor a word",
    {},
)


@dataclass(frozen=True)
class _Measurement:
    name: str
    value: Any  # the schema allows words and lists; they are no counters
    unit: str = ""


@dataclass(frozen=True)
class _Times:
    runtimes: tuple[float, ...] = ()
    compilation_time: Any = None
    framework: Any = None
    search_algorithm: Any = None
    validation: Any = None


@dataclass(frozen=True)
class _Result:
    configuration: Mapping[str, Annotated[Any, _KNOB]]
    times: _Times = _Times()
    invalidity: str = ""
    correctness: Any = None
    measurements: tuple[_Measurement, ...] = ()
    objectives: tuple[str, ...] = ()
    timestamp: Any = None


@dataclass(frozen=True)
class _Document:
    results: Annotated[tuple[_Result, ...], Rule(bool, "has no T4 results", {})]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    schema_version: str = T4_VERSION


def read_t4(path: Path, workload: str) -> SpaceTable:
    """A T4 results file as a table with one workload.  Times are taken from the runtimes, else from
    an objective that is a time; raises ProfileFormatError, also for unknown fields."""
    try:
        raw = codec.parse(read_bytes(path))
        json.dumps(raw, ensure_ascii=False).encode()  # JSON can say what no text can hold
        document = codec.load(_Document, raw)
        if document.schema_version.split(".")[0] != T4_VERSION.split(".")[0]:
            raise ValueError(f"schema_version {document.schema_version} is not 1.x")
        unit_s = _seconds(document.metadata.get("timeunit", "milliseconds"))
        rows, units = [], dict[str, str]()
        for number, result in enumerate(document.results):
            try:
                rows.append(_row(result, workload, unit_s, units))
            except ValueError as error:
                raise ValueError(f"results[{number}]: {error}") from None
        knobs = knob_types(row.knobs for row in rows)
    except FileNotFoundError:
        raise StorageError(f"cannot read {path}: there is no such file") from None
    except (ValueError, UnknownUnit, InvalidConfig) as error:
        raise ProfileFormatError(f"{path}: {error}") from None
    return SpaceTable(path, SpaceMeta(knobs, units=units, note=f"from {path.name}"), tuple(rows))


def _seconds(unit: Any) -> float:
    """The seconds of a unit of T4; raises ValueError and UnknownUnit."""
    if not isinstance(unit, str):
        raise ValueError(f"{unit!r} is no unit of time")
    return to_seconds(1.0, _TIME_UNITS.get(unit, unit))


def _row(result: _Result, workload: str, unit_s: float, counter_units: dict[str, str]) -> SpaceRow:
    """A result's row; the units of its counters are added to `counter_units`."""
    if result.invalidity not in _OUTCOME:
        raise ValueError(f"unknown invalidity {result.invalidity!r}")
    outcome = _OUTCOME[result.invalidity]
    if len({m.name for m in result.measurements}) < len(result.measurements):
        raise ValueError("a measurement is given twice")
    times = {m.name: t for m in result.measurements if (t := _time(m, unit_s)) is not None}
    objective = next((n for n in (*result.objectives, OBJECTIVE) if n in times), None)
    samples: tuple[float, ...] = ()
    if outcome is Outcome.OK:
        runtimes = tuple(s * unit_s for s in result.times.runtimes)
        samples = runtimes or ((times[objective],) if objective is not None else ())
        if not samples or not all(0 < s < math.inf for s in samples):
            named = " or ".join(dict.fromkeys(result.objectives)) or OBJECTIVE
            raise ValueError(f"it has no positive time: no runtimes, nor {named} in a unit of time")
        low, high = min(samples) / UNIT_SLIP, max(samples) * UNIT_SLIP
        if objective is not None and not low < times[objective] < high:
            raise ValueError(f"{objective} is {times[objective]:g} s, and its runtimes are not")
    facts, counters = {}, {}
    for found in filter(lambda m: _is_number(m.value), result.measurements):
        if found.name.startswith("fact."):
            facts[found.name.removeprefix("fact.")] = float(found.value)
        elif found.name != objective:
            counters[found.name] = float(found.value)
            if counter_units.setdefault(found.name, found.unit) != found.unit:
                raise ValueError(f"{found.name} is in another unit than above: {found.unit!r}")
    name = ", ".join(f"{n}={v}" for n, v in result.configuration.items())
    return SpaceRow(f"t4:{name}", workload, outcome, result.configuration, samples, facts=facts,
               counters=counters)  # fmt: skip


def _time(found: _Measurement, unit_s: float) -> float | None:
    """The seconds of a measurement that is a time, by its unit, or where it has none by its name,
    in the file's unit."""
    if not _is_number(found.value) or not (found.unit or found.name == OBJECTIVE):
        return None
    try:
        return float(found.value) * (_seconds(found.unit) if found.unit else unit_s)
    except UnknownUnit:
        return None


def _plain(value: Knob) -> int | float | str:
    return int(value) if isinstance(value, bool) else value
