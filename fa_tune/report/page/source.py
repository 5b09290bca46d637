"""What a page is made from: rows, and what was recorded beside them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fa_tune.core.comparison import OnInputs
from fa_tune.core.model import Measurement
from fa_tune.profile import profile_json
from fa_tune.store.table.from_attempts import rows_from_measurements
from fa_tune.store.table.rows import Row

if TYPE_CHECKING:
    from fa_tune.store.recordings import Meta

OnInputsBySubject = Mapping[str, Sequence[OnInputs]]
# What must be known of measurements, as pages call it.
FACTS = {
    "gpu": "GPU",
    "driver": "driver",
    "recorded_at": "date",
    "inputs": "inputs",
    "method": "method",
    "cache_policy": "caches",
    "clock_policy": "clocks",
    "libraries": "versions",
}


@dataclass(frozen=True)
class Source:
    """Measurements of one origin.  `chosen` and `on_inputs` are by workload key, the subjects in
    them by `family:config`; `profiled` are measurements with counters that explain; `facts` say
    where and how they were taken, by the names of `FACTS` and others."""

    name: str
    rows: Sequence[Row]
    chosen: Mapping[str, str] = field(default_factory=dict)
    on_inputs: Mapping[str, OnInputsBySubject] = field(default_factory=dict)
    profiled: Sequence[Measurement] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    is_profile: bool = False  # nothing was to be chosen among the rows

    @property
    def title(self) -> str:
        """Its name, GPU and date, as far as they are known."""
        known = [self.facts[name] for name in ("gpu", "recorded_at") if name in self.facts]
        return f"{self.name} ({', '.join(known)})" if known else self.name

    @property
    def gpu(self) -> str:
        """The GPU's name; empty if it is unknown or there are several."""
        return "" if ";" in self.facts.get("gpu", "") else self.facts.get("gpu", "")


def source_of(path: Path, rows: Sequence[Row]) -> Source:
    """Rows that were read from `path`, with the provenance and the counters kept beside them;
    raises ProfileFormatError where these are damaged."""
    from fa_tune.store import recordings  # its schema takes long to load

    tables = sorted(path.glob("*.csv")) if path.is_dir() else [path]
    metas = [
        recordings.load_meta(t) for t in tables if t.with_suffix(recordings.META_SUFFIX).is_file()
    ]
    documents = sorted(path.glob(f"*{profile_json.SUFFIX}")) if path.is_dir() else []
    chosen: dict[str, str] = {}
    on_inputs: dict[str, dict[str, tuple[OnInputs, ...]]] = {}
    for meta in metas:
        for workload, decided in meta.decided.items():
            if decided.kept:
                chosen[workload] = decided.kept
            on_inputs.setdefault(workload, {}).update(decided.on_inputs)
    return Source(
        name=str(path),
        rows=rows,
        chosen=chosen,
        on_inputs=on_inputs,
        profiled=tuple(m for document in documents for m in profile_json.load(document)),
        facts=_provenance(metas),
    )


def profiled_source(path: Path, measurements: Sequence[Measurement]) -> Source:
    """What `fa-tune profile --json` wrote, as rows and with the counters."""
    rows = rows_from_measurements(measurements)
    return Source(str(path), rows, profiled=measurements, is_profile=True)


def _provenance(metas: Sequence[Meta]) -> dict[str, str]:
    """Each fact once, with all values it has."""
    found: dict[str, list[str]] = {}
    for meta in metas:
        facts = dataclasses.asdict(meta.provenance) | {
            "inputs": meta.inputs,
            "libraries": meta.measured_by.libraries,
        }
        for name, value in facts.items():
            text = _text(value)
            if name == "recorded_at":
                text = text[:16].replace("T", " ")
            if text and text not in found.setdefault(name, []):
                found[name].append(text)
    return {name: "; ".join(values) for name, values in found.items() if values}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return (
        json.dumps(value, sort_keys=True) if isinstance(value, dict) and value else str(value or "")
    )
