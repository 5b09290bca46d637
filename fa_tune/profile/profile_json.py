"""Documents of `fa-tune profile --json`, read back: measurements with all their counters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from fa_tune.core.errors import ProfileFormatError
from fa_tune.core.files import read_json
from fa_tune.core.model import Measurement, Quantity
from fa_tune.core.workload import Workload
from fa_tune.profile.ncu.metrics import checked

SCHEMA = "fa-tune-profile-1"
SUFFIX = "_explain.json"  # of the documents kept beside recordings
_LARGEST = sys.float_info.max


def whose(path: Path) -> str:
    """The GPU and date of a document's measurements, if it says; raises ProfileFormatError."""
    document = _document(path)
    found = str(document.get("whose") or "measured on an unknown GPU")
    found = found.replace("this machine's", "an")
    if not found.startswith("measured"):  # a replay says when
        return found
    date = str(document.get("written_at") or "")[:10]
    return f"{found} {f'on {date}' if date else 'at an unknown date'}"


def beside_recordings(folder: Path) -> list[Path]:
    """The documents that are kept beside the recordings in a folder."""
    return sorted(folder.glob(f"*/*{SUFFIX}"))


def load(path: Path) -> tuple[Measurement, ...]:
    """The measurements of a document that have a time; raises ProfileFormatError."""
    document = _document(path)
    try:
        methods = {row["kernel"]: row["method"] for row in document["rows"]}
        method = next(iter(methods.values()), "ncu")
        found = [_measurement(entry, method) for entry in document["measurements"]]
    except (KeyError, TypeError, AttributeError, ValueError, ProfileFormatError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ProfileFormatError(f"{path}: {what}") from None
    return tuple(m for m in found if m is not None)


def _document(path: Path) -> dict[str, Any]:
    document = read_json(path)
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ProfileFormatError(f"{path} is not the output of fa-tune profile --json ({SCHEMA})")
    return document


def _measurement(entry: dict[str, Any], method: str) -> Measurement | None:
    samples = tuple(_finite(s) for s in entry["samples_s"])
    if entry["outcome"] != "ok" or not samples:
        return None
    if min(samples) <= 0:
        raise ValueError(f"{entry['subject']}: {min(samples)} is no duration")
    Workload.from_key(entry["workload"])
    counters = {
        str(name): checked(
            name, Quantity(_finite(q["value"]), str(q["unit"])), q["unit"], q["value"]
        )
        for name, q in entry["counters"].items()
    }
    return Measurement(str(entry["subject"]), entry["workload"], method, samples, counters)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ValueError(f"{str(value)[:40]} is not a number that can be read")
    return float(value)
