"""Recorded tunings as a JSON file, for `fa-tune bench-decisions`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_tune.core.errors import ProfileFormatError, StorageError
from fa_tune.core.files import read_json, replace_file
from fa_tune.core.stats import MARGIN, Interval, Ratio
from fa_tune.lab.repeatability import Tuning

SCHEMA = "fa-tune-decisions-1"


@dataclass(frozen=True)
class RecordedTunings:
    """Tunings, and whose they are: a sentence with GPU, method and date."""

    tunings: tuple[Tuning, ...]
    whose: str


def save(path: Path, recorded: RecordedTunings) -> None:
    """Write a file, whole or not at all; raises StorageError."""
    document = {
        "schema": SCHEMA,
        "whose": recorded.whose,
        "tunings": [_to_json(tuning) for tuning in recorded.tunings],
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from None


def load(path: Path) -> RecordedTunings:
    """Read a file; raises StorageError, and ProfileFormatError for one that is no such file."""
    document = read_json(path)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ProfileFormatError(f"{path}: not recorded tunings ({SCHEMA})")
    try:
        tunings = tuple(_from_json(value) for value in document["tunings"])
        return RecordedTunings(tunings, str(document["whose"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProfileFormatError(f"{path}: {type(error).__name__}: {error}") from None


def _to_json(tuning: Tuning) -> dict[str, Any]:
    return {
        "workload": tuning.workload,
        "method": tuning.method,
        "seed": tuning.seed,
        "default": tuning.default,
        "margin": tuning.margin,
        "chosen": tuning.chosen,
        "preferred": tuning.preferred,
        "confirmed": None if tuning.confirmed is None else _ratio_to_json(tuning.confirmed),
        "ranks": {subject: list(rank) for subject, rank in tuning.ranks.items()},
        "samples_s": {subject: list(taken) for subject, taken in tuning.samples.items()},
        "relative": {subject: list(taken) for subject, taken in tuning.relative.items()},
    }


def _from_json(value: dict[str, Any]) -> Tuning:
    confirmed = value["confirmed"]
    samples = {str(s): _times(taken) for s, taken in value["samples_s"].items()}
    relative = {str(s): _times(taken) for s, taken in value.get("relative", {}).items()}
    if any(len(taken) != len(samples[s]) for s, taken in relative.items()):
        raise ValueError("relative samples are not as many as samples")
    tuning = Tuning(
        workload=str(value["workload"]),
        method=str(value["method"]),
        seed=int(value["seed"]),
        default=None if value["default"] is None else str(value["default"]),
        chosen=str(value["chosen"]),
        preferred=str(value["preferred"]),
        samples=samples,
        ranks={str(s): tuple(int(n) for n in rank) for s, rank in value["ranks"].items()},
        confirmed=None if confirmed is None else _ratio_from_json(confirmed),
        relative=relative,
        margin=float(value.get("margin", MARGIN)),
    )
    if tuning.chosen not in samples or not tuning.candidates:
        raise ValueError("the chosen one has no samples")
    return tuning


def _times(values: Sequence[Any]) -> tuple[float, ...]:
    times = tuple(float(v) for v in values)
    if not times or not all(0.0 < t < math.inf for t in times):
        raise ValueError("a time must be positive and finite")
    return times


def _ratio_to_json(ratio: Ratio) -> dict[str, Any]:
    return {"value": ratio.value, "interval": list(ratio.interval) if ratio.interval else None}


def _ratio_from_json(value: dict[str, Any]) -> Ratio:
    interval = value["interval"]
    return Ratio(
        float(value["value"]),
        None if interval is None else Interval(float(interval[0]), float(interval[1])),
    )
