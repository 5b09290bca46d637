"""Recordings: a table of finished attempts (CSV) with its provenance (`.meta.json`) beside it.

    profiles/<gpu>/<name>.csv         every row of a search, in the report's columns
    profiles/<gpu>/<name>.meta.json   GPU, versions, profiler arguments, policies, date

Written by `fa-tune search --record`, read by replay and the tests, never edited by hand.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.comparison import Confirmation, OnInputs
from fa_tune.core.errors import InvalidConfig, ProfileFormatError, StorageError
from fa_tune.core.files import read_bytes, replace_files, storage_errors
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import (
    NEVER_CHOSEN,
    REFERENCE_FAMILY,
    Attempt,
    DeviceInfo,
    Measurement,
    Outcome,
    Provenance,
    Quantity,
    Variant,
    parse_time,
    user_subject,
)
from fa_tune.core.workload import Workload
from fa_tune.libraries import LABELS
from fa_tune.store.shared_files import locked
from fa_tune.store.table.checks import METHODS, named
from fa_tune.store.table.columns import COUNTERS
from fa_tune.store.table.from_attempts import CYCLES, rows_from_attempts
from fa_tune.store.table.read_csv import parse_rows, text_of
from fa_tune.store.table.rows import Row
from fa_tune.store.table.write_csv import write_csv

META_SUFFIX = ".meta.json"
UNFINISHED = "_unfinished"  # how the name ends of what a search has measured so far
SCHEMA = 2
FLAT = 1  # the schema that had a ratio and its interval as two fields of what they are of
READS = 3  # of a recording that seems to be half replaced
READ_AGAIN_S = 0.1
_LOCK = ".recordings"  # of all recordings in a folder
_GONE_FROM_DEVICE = ("l2_bytes", "sm_count")  # fields of older recordings
SOURCES = "kernel_source_sha256_by_family"  # in `Provenance.extra`, with several families
# How the packages of `MeasuredBy.versions` are called, in the order they are told.
VERSION_LABELS = {"torch": "torch", "cupy": "CuPy", **LABELS}
_LABEL_TO_NAME = {label: name for name, label in LABELS.items()}


@dataclass(frozen=True)
class Decided:
    """What the choice on one workload was made by, and the table does not hold: a replay decides
    by it as the search did.  `margin` is what the default had to be beaten by; `confirmed` the
    comparison after the search; `chosen` is the variant, by key, that the search put into the
    registry, empty in old recordings; `on_inputs` are the figures of the choice, the default and
    others on each kind of inputs, by variant's key."""

    margin: float
    confirmed: Confirmation | None = None
    chosen: str = ""
    on_inputs: Mapping[str, tuple[OnInputs, ...]] = field(default_factory=dict)

    @property
    def kept(self) -> str:
        """The key of the variant that the search kept, as far as its recording tells."""
        return self.chosen or (self.confirmed.left if self.confirmed is not None else "")


@dataclass(frozen=True)
class MeasuredBy:
    """What the samples of a recording came from: the UUIDs of its GPUs, and each version of the
    packages that measured subjects ran with, by name (`torch`, `cudnn`, `fa3`, `fa4`, `cupy`).
    More than one version: some samples were kept from an earlier run."""

    gpus: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, attempts: Iterable[Attempt]) -> MeasuredBy:
        """What measured these."""
        found = [a.measurement for a in attempts if a.measurement is not None]
        versions: dict[str, tuple[str, ...]] = {}
        for name, version in sorted({pair for m in found for pair in m.versions.items()}):
            versions[name] = (*versions.get(name, ()), version)
        return cls(tuple(sorted({m.gpu_uuid for m in found if m.gpu_uuid})), versions)

    @property
    def libraries(self) -> str:
        """`torch 2.11.0, cuDNN 9.13.0`; empty in old recordings."""
        return ", ".join(
            f"{label} {' and '.join(self.versions[name])}"
            for name, label in VERSION_LABELS.items()
            if name in self.versions
        )


@dataclass(frozen=True)
class Meta:
    """The `.meta.json` of a recording.  `decided`, by workload key, and `measured_by` are empty in
    old ones; `inputs` is the text of what Q, K and V held.  `table_sha256` is of the CSV beside it,
    so that the two are known to belong together; `save` fills it in, old ones have none."""

    schema: int
    device: DeviceInfo
    provenance: Provenance
    note: str = ""
    decided: Mapping[str, Decided] = field(default_factory=dict)
    measured_by: MeasuredBy = MeasuredBy()
    inputs: str = str(NORMAL)
    table_sha256: str = field(default="", compare=False)


@dataclass(frozen=True)
class Recording:
    """One recording: where it is, how it was taken, and what it holds."""

    path: Path
    meta: Meta
    attempts: tuple[Attempt, ...]

    @property
    def label(self) -> str:
        """`nvidia_h200/tune_ncu.csv`, how messages name it."""
        return f"{self.path.parent.name}/{self.path.name}"


def save(path: Path, attempts: Iterable[Attempt], resources: Mapping[str, Any], meta: Meta) -> None:
    """Write a recording; `path` is the CSV.  Both files are on the disk when this returns, or
    where one cannot be written both are as they were.  Raises StorageError."""
    table = io.StringIO(newline="")
    write_csv(rows_from_attempts(attempts, resources), table)
    data = table.getvalue().encode()
    meta = dataclasses.replace(meta, table_sha256=hashlib.sha256(data).hexdigest())
    text = json.dumps(codec.dump(meta), indent=1, sort_keys=True) + "\n"
    try:
        _meta_of(text)
        parse_rows(table.getvalue(), "its table")
    except (ValueError, ProfileFormatError) as error:
        raise StorageError(f"cannot write the recording {path}: {error}") from None
    with storage_errors(f"cannot write the recording {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.parent / _LOCK, "recordings"):
            replace_files({path: data, path.with_suffix(META_SUFFIX): text.encode()}, alone=True)


def load(path: Path) -> Recording:
    """Read one recording; raises ProfileFormatError for a damaged table or provenance, StorageError
    for a table that is not there."""
    return _with_table(path, load_meta(path))


def _with_table(path: Path, meta: Meta, only: Collection[tuple[str, str]] = ()) -> Recording:
    data, meta = _table_of(path, meta)
    attempts = []
    for row in parse_rows(text_of(data, path), str(path), only=only):
        if wrong := _row_contradiction(row, meta):
            raise ProfileFormatError(f"{path}: {named(row, wrong)}")
        attempts.append(_attempt(row, meta))
    meta = dataclasses.replace(meta, decided=_decided(path, meta))
    return Recording(path, meta, tuple(attempts))


def _decided(path: Path, meta: Meta) -> dict[str, Decided]:
    try:
        return {key: _canonical(found) for key, found in meta.decided.items()}
    except InvalidConfig as error:
        raise ProfileFormatError(f"{path.with_suffix(META_SUFFIX)}: decided: {error}") from None


def _table_of(path: Path, meta: Meta) -> tuple[bytes, Meta]:
    """What a table holds, and the provenance that belongs to it: both are read again where they
    do not, since a writer may have replaced one so far."""
    beside = path.with_suffix(META_SUFFIX).name
    for again in range(READS):
        if again:
            time.sleep(READ_AGAIN_S)
            meta = load_meta(path)
        try:
            data = read_bytes(path)
        except FileNotFoundError:
            raise StorageError(
                f"{path} is missing: bring it back, or remove {beside} beside it"
            ) from None
        if meta.table_sha256 in ("", hashlib.sha256(data).hexdigest()):
            return data, meta
    parse_rows(text_of(data, path), str(path))  # damage that shows has a better message
    raise ProfileFormatError(
        f"{path} is not the table that {beside} belongs to: one of them was changed or replaced "
        "without the other; bring back both, or record it again"
    )


def _row_contradiction(row: Row, meta: Meta) -> str | None:
    """What in a row cannot be true of a recording; None if nothing."""
    if row.workload is None:
        return "the row states no workload"
    if row.method != meta.provenance.method and (row.method or row.samples_s):
        return f"the row is by {row.method or 'no method'}, its provenance {meta.provenance.method}"
    samples = row.samples_s or ()
    if row.outcome is Outcome.OK and not samples:
        return "the row has no samples"
    return None


def _canonical(decided: Decided) -> Decided:
    """The same with every variant as its family writes it today; raises InvalidConfig."""
    if (found := decided.confirmed) is not None:
        chosen, default = _todays_key(found.chosen), _todays_key(found.default)
        found = dataclasses.replace(found, chosen=chosen, default=default)
    return dataclasses.replace(
        decided,
        confirmed=found,
        chosen=decided.chosen and _todays_key(decided.chosen),
        on_inputs={_todays_key(key): figures for key, figures in decided.on_inputs.items()},
    )


def _todays_key(key: str) -> str:
    return families.canonical(Variant.from_key(key)).key


def load_meta(path: Path) -> Meta:
    """The provenance beside a table; raises ProfileFormatError."""
    meta_path = path.with_suffix(META_SUFFIX)
    try:
        text = meta_path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileFormatError(f"{path} has no readable {meta_path.name}: {error}") from error
    try:
        return _meta_of(text)
    except ValueError as error:
        raise ProfileFormatError(f"{meta_path}: {error}") from None


def _meta_of(text: str) -> Meta:
    """The provenance that a file says; raises ValueError."""
    raw = codec.parse(text)
    codec.check_printable(raw)
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if type(schema) is not int or schema not in (FLAT, SCHEMA):
        raise ValueError(f"schema {schema} is not the one this fa-tune reads ({SCHEMA})")
    meta = codec.load(Meta, _from_flat(raw) if schema == FLAT else raw)
    if wrong := _contradiction(meta):
        raise ValueError(wrong)
    return meta


def _from_flat(raw: Any) -> Any:
    """A provenance of schema 1 as one of today.  What does not fit stays as it is, to be refused
    where it is checked."""
    if isinstance(raw, list):
        return [_from_flat(part) for part in raw]
    if not isinstance(raw, dict):
        return raw
    parts = {name: _from_flat(part) for name, part in raw.items() if name != "extra"}
    if {"ratio", "interval"} <= parts.keys():
        ratio, interval = parts.pop("ratio"), parts.pop("interval")
        known = (ratio, interval) != (None, None)
        whole = {"value": ratio, "interval": interval} if known else None
        parts["ratio" if "n" in parts else "to_default"] = whole
    if isinstance(device := parts.get("device"), dict):
        parts["device"] = {n: part for n, part in device.items() if n not in _GONE_FROM_DEVICE}
    if parts.get("schema") == FLAT:
        parts["schema"] = SCHEMA
    return parts | ({"extra": raw["extra"]} if "extra" in raw else {})


def _contradiction(meta: Meta) -> str | None:
    """What in a provenance cannot be true; None if nothing."""
    p = meta.provenance
    if p.gpu != meta.device.name:
        return f"provenance.gpu is {p.gpu!r}, but device.name {meta.device.name!r}"
    if p.method not in METHODS:
        return f"provenance.method is {p.method!r}, not {' or '.join(METHODS)}"
    try:
        parse_time(p.recorded_at)
        has_zone = datetime.fromisoformat(p.recorded_at).tzinfo is not None
    except ValueError:
        has_zone = False
    if not has_zone:
        return f"provenance.recorded_at is not an ISO 8601 time with a zone: {p.recorded_at!r}"
    try:
        for key in meta.decided:
            Workload.from_key(key)
    except InvalidConfig as error:
        return f"decided: {error}"
    return None


def families_in(recording: Recording) -> tuple[str, ...]:
    """The names of the families whose kernels a recording holds, references aside."""
    names = (Variant.from_key(a.subject).family for a in recording.attempts)
    return tuple(sorted({name for name in names if name not in NEVER_CHOSEN}))


def kernel_source_sha256(recording: Recording, family: str) -> str:
    """The hash of the sources that a family's kernels in a recording were made of; the one
    over all sources where a recording of several families does not tell them apart."""
    provenance = recording.meta.provenance
    return str(provenance.extra.get(SOURCES, {}).get(family, provenance.kernel_source_sha256))


def load_all(
    folder: Path,
    *,
    of: Callable[[Meta], bool] = lambda _: True,
    like: Iterable[Workload] = (),
) -> tuple[Recording, ...]:
    """All recordings in the GPU folders of `folder`, or of a GPU folder itself, newest first;
    the tables only of those that are `of` what is wanted, and of these all, or what is of the dtype
    and head dimension of a workload that it is to be `like`.  None that a search has yet to finish:
    it may be going on, and what it has is in its journal."""
    only = {(w.dtype.name, str(w.d_head)) for w in like}
    found = [_with_table(path, meta, only) for path, meta in _finished(folder) if of(meta)]
    return tuple(sorted(found, key=lambda r: r.meta.provenance.recorded_at, reverse=True))


def check_all(folder: Path) -> tuple[Meta, ...]:
    """The provenance of these recordings.  Tables are checked by their hashes, and read where there
    is none.  Raises as `load` does."""
    found = _finished(folder)
    for path, meta in found:
        _decided(path, meta)
        (_table_of if meta.table_sha256 else _with_table)(path, meta)
    return tuple(meta for _, meta in found)


def _finished(folder: Path) -> list[tuple[Path, Meta]]:
    paths = [p.with_name(p.name.removesuffix(META_SUFFIX) + ".csv") for p in metas(folder)]
    return [(path, load_meta(path)) for path in paths if not path.stem.endswith(UNFINISHED)]


def metas(folder: Path) -> list[Path]:
    """The `.meta.json` files of the GPU folders of `folder`, or of a GPU folder itself."""
    if not folder.is_dir():
        return []
    return sorted(folder.glob(f"*/*{META_SUFFIX}")) or sorted(folder.glob(f"*{META_SUFFIX}"))


def _attempt(row: Row, meta: Meta) -> Attempt:
    workload = row.workload
    assert workload is not None  # `_row_contradiction`
    if row.family == REFERENCE_FAMILY:
        name = _LABEL_TO_NAME.get(row.kernel, row.kernel.lower())
        subject = Variant(REFERENCE_FAMILY, name).key
    elif row.is_reference:
        subject = user_subject(row.kernel)
    else:
        subject = _todays_key(Variant(row.family, row.kernel).key)
    measurement = None
    columns = ((c.metric, getattr(row, c.field), c.unit) for c in COUNTERS)
    counters = ((CYCLES[0], row.cycles, "cycle"), *columns)
    if row.outcome is Outcome.OK and row.samples_s:
        measurement = Measurement(
            subject=subject,
            workload=workload.key,
            method=row.method,
            samples_s=row.samples_s,
            counters={n: Quantity(float(v), unit) for n, v, unit in counters if v is not None},
            conditions={
                "clocks": meta.provenance.clock_policy,
                "cache": meta.provenance.cache_policy,
            },
            relative=row.relative or (),
            preference=row.preference,
            inputs=row.inputs,
            held_out_s=row.held_out_s or (),
            held_out_relative=row.held_out_relative or (),
        )
    return Attempt(subject, workload.key, row.outcome, row.reason, measurement)


def remove(path: Path) -> None:
    """Delete a recording that there may be; `path` is the CSV.  Raises StorageError."""
    with storage_errors(f"cannot remove {path}"), locked(path.parent / _LOCK, "recordings"):
        for file in (path.with_suffix(META_SUFFIX), path):
            file.unlink(missing_ok=True)
