"""Recorded tunings as a JSON file, for `fa-tune bench-decisions`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from fa_tune.core import codec
from fa_tune.core.errors import ProfileFormatError, StorageError
from fa_tune.core.files import read_json, replace_file
from fa_tune.lab.repeatability import Tuning

SCHEMA = "fa-tune-decisions-1"


@dataclass(frozen=True)
class RecordedTunings:
    """Tunings, and whose they are: a sentence with GPU, method and date."""

    tunings: tuple[Tuning, ...]
    whose: str


def save(path: Path, recorded: RecordedTunings) -> None:
    """Write a file, whole or not at all; raises StorageError."""
    document = {"schema": SCHEMA, **codec.dump(recorded)}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}") from None


def load(path: Path) -> RecordedTunings:
    """Read a file; raises StorageError, and ProfileFormatError for one that is no such file."""
    document = read_json(path)
    if not isinstance(document, dict) or document.pop("schema", None) != SCHEMA:
        raise ProfileFormatError(f"{path}: not recorded tunings ({SCHEMA})")
    try:
        found = codec.load(RecordedTunings, document)
    except ValueError as error:
        raise ProfileFormatError(f"{path}: {error}") from None
    for tuning in found.tunings:
        lengths = {subject: len(taken) for subject, taken in tuning.samples_s.items()}
        if not all(lengths.values()) or tuning.chosen not in tuning.candidates:
            raise ProfileFormatError(f"{path}: {tuning.workload}: one has no samples")
        if any(len(taken) != lengths.get(s) for s, taken in tuning.relative.items()):
            raise ProfileFormatError(f"{path}: relative samples are not as many as samples")
    return found
