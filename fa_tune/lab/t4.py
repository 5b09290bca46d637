"""The auto-tuning community's formats: T4 results, and Kernel Tuner's cache files.

T4 (github.com/odgaard/TuningSchema, results-schema.json, version 1.0.0) holds one workload per
file: a list of configurations with times in milliseconds, an invalidity and measurements.
Kernel Tuner's simulation mode replays its own cache format, so that is written as well.
Switches are written as 0 and 1: both formats are read by programs that print values as keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fa_tune.core.errors import InvalidConfig, ProfileFormatError, StorageError
from fa_tune.core.files import read_json, replace_files
from fa_tune.core.model import Outcome
from fa_tune.lab.space_table import RecordedWorkload, SpaceMeta, SpaceRow, SpaceTable, knob_types
from fa_tune.search.strategies.base import Knob

T4_VERSION = "1.0.0"
T4_SUFFIX = ".t4.json"
CACHE_SUFFIX = ".kernel_tuner.json"
OBJECTIVE = "time"

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
    try:
        folder.mkdir(parents=True, exist_ok=True)
        replace_files({path: (json.dumps(d) + "\n").encode() for path, d in documents.items()})
    except OSError as error:
        raise StorageError(f"cannot write to {folder}: {error.strerror}") from error
    return results, cache


def read_t4(path: Path, workload: str) -> SpaceTable:
    """A T4 results file as a table with one workload; raises ProfileFormatError."""
    document = read_json(path)
    results = document.get("results") if isinstance(document, dict) else None
    if not isinstance(results, list) or not results:
        raise ProfileFormatError(f"{path} has no T4 results")
    to_seconds = _to_seconds(document, path)
    rows = []
    for number, result in enumerate(results):
        try:
            rows.append(_row(result, workload, to_seconds))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ProfileFormatError(f"{path}: result {number}: {what}") from None
    try:
        knobs = knob_types(row.knobs for row in rows)
    except InvalidConfig as error:
        raise ProfileFormatError(f"{path}: {error}") from None
    units = {m.get("name"): m.get("unit", "") for r in results for m in _measurements(r)}
    counted = {name for row in rows for name in row.counters}
    kept = {str(n): str(u) for n, u in units.items() if n in counted}
    return SpaceTable(path, SpaceMeta(knobs, units=kept, note=f"from {path.name}"), tuple(rows))


def _to_seconds(document: Mapping[str, Any], path: Path) -> float:
    metadata = document.get("metadata")
    unit = metadata.get("timeunit", "milliseconds") if isinstance(metadata, dict) else None
    known = {None: 1e-3, "seconds": 1.0, "microseconds": 1e-6}
    known |= dict.fromkeys(("milliseconds", "miliseconds"), 1e-3)  # files in use have both
    if unit not in known:
        raise ProfileFormatError(f"{path}: unknown time unit {unit!r}")
    return known[unit]


def _row(result: Mapping[str, Any], workload: str, to_seconds: float) -> SpaceRow:
    configuration = result["configuration"]
    for name, value in configuration.items():
        if not isinstance(value, bool | int | float | str):
            raise ValueError(f"{name} is {value!r}, neither a number nor a word")
    invalidity = result.get("invalidity", "")
    if invalidity not in _OUTCOME:
        raise ValueError(f"unknown invalidity {invalidity!r}")
    outcome = _OUTCOME[invalidity]
    objective = (result.get("objectives") or [OBJECTIVE])[0]
    facts, counters = {}, {}
    time = None
    for measurement in _measurements(result):
        name, value = str(measurement["name"]), measurement["value"]
        if not isinstance(value, int | float) or not math.isfinite(value):
            continue  # the schema allows words and lists; they are no counters
        if name == objective:
            time = float(value) * to_seconds
        elif name.startswith("fact."):
            facts[name.removeprefix("fact.")] = float(value)
        else:
            counters[name] = float(value)
    samples: tuple[float, ...] = ()
    if outcome is Outcome.OK:
        samples = tuple(float(s) * to_seconds for s in result["times"].get("runtimes", ()))
        samples = samples or ((time,) if time is not None else ())
        if not samples or not all(0 < s < math.inf for s in samples):
            raise ValueError("a correct result has no positive time")
    name = ", ".join(f"{n}={v}" for n, v in configuration.items())
    return SpaceRow(f"t4:{name}", workload, outcome, configuration, samples, facts=facts,
               counters=counters)  # fmt: skip


def _measurements(result: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return result.get("measurements") or ()


def _plain(value: Knob) -> int | float | str:
    return int(value) if isinstance(value, bool) else value
