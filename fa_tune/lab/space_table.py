"""A recorded space: one row per variant and workload, with all that is known of it.

    <name>.space.csv.gz       the rows, described below
    <name>.space.json         whose they are: GPU, provenance, the knobs' types, the counters'
                              units, the default variant of every workload, the hash of the rows

    variant, workload, outcome, reason, samples_s     samples separated by spaces
    soft_rules                names of the rules that objected, separated by spaces
    knob.<name>               the config's fields
    fact.<name>               what was known before it ran; empty: not known
    counter.<name>            what was counted while it ran; empty: not counted

The rows say everything again that the variant's name says, so that they can be read without
the family's code and by other programs.  docs/spaces.md describes the format for them.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.errors import InvalidConfig, ProfileFormatError, StorageError
from fa_tune.core.files import check_folder, read_bytes, replace_files, storage_errors
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import DeviceInfo, Outcome, Provenance, Variant
from fa_tune.core.stats import median
from fa_tune.search.strategies.base import Knob, Point, Space, knobs_of
from fa_tune.search.strategies.points import bytes_per_s, tile_facts, with_derived, workload_of

SUFFIX = ".space.csv.gz"
META_SUFFIX = ".space.json"
SCHEMA = 1
_FIXED = ("variant", "workload", "outcome", "reason", "samples_s", "soft_rules")
_KNOB, _FACT, _COUNTER = "knob.", "fact.", "counter."
MAX_TEXT_BYTES = 1 << 28  # of the rows unpacked; those that come with fa-tune have 1 MB
_DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")

KnobType = Literal["bool", "int", "float", "str"]


@dataclass(frozen=True)
class SpaceMeta:
    """Whose measurements a table holds.  `knobs` are their types in the config's order,
    `units` those of the counters, `defaults` the default variant by workload, `inputs` the text
    of what Q, K and V held.  `table_sha256` is of the rows' file, so that the two are known to
    belong together; `save` fills it in, old ones have none."""

    knobs: Mapping[str, KnobType]
    device: DeviceInfo | None = None
    provenance: Provenance | None = None
    units: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    schema: int = SCHEMA
    inputs: str = str(NORMAL)
    table_sha256: str = field(default="", compare=False)


@dataclass(frozen=True)
class SpaceRow:
    """One variant on one workload; `samples_s` is empty unless the outcome is ok."""

    variant: str
    workload: str
    outcome: Outcome
    knobs: Mapping[str, Knob]
    samples_s: tuple[float, ...] = ()
    reason: str = ""
    soft_rules: tuple[str, ...] = ()
    facts: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)

    @property
    def time_s(self) -> float | None:
        """The median of the samples, None for a failure."""
        return median(self.samples_s) if self.samples_s else None


@dataclass(frozen=True)
class SpaceTable:
    """A recorded space as read; `path` is the rows' file.

    Configs and knobs have the names of today, whatever they were recorded as; `left_out` is how
    many rows have a knob that was removed since, and are not among `rows`.
    """

    path: Path
    meta: SpaceMeta
    rows: tuple[SpaceRow, ...]
    left_out: int = 0

    @property
    def name(self) -> str:
        """`sm80_wide`, how tables and messages name it."""
        return self.path.name.removesuffix(SUFFIX)


@dataclass(frozen=True)
class RecordedWorkload:
    """One workload of a table, ready to be searched: `rows[i]` is what became of point i."""

    name: str
    space: Space
    rows: tuple[SpaceRow, ...]

    @property
    def times_s(self) -> tuple[float | None, ...]:
        """Median seconds per point, None for a failure."""
        return tuple(row.time_s for row in self.rows)

    @property
    def best_s(self) -> float:
        """Median seconds of the fastest point."""
        return min(time for time in self.times_s if time is not None)

    @property
    def best_bytes_per_s(self) -> float | None:
        """What the fastest point moves between memory and the chip; None where that is not its
        limit, and for a workload of another tuner."""
        return bytes_per_s(self.rows[0].workload, self.best_s)


def recorded(table: SpaceTable) -> list[RecordedWorkload]:
    """The table's workloads as spaces, whose start point is the default config where it was
    recorded.  Raises ProfileFormatError where nothing ran."""
    found = []
    by_workload: dict[str, list[SpaceRow]] = {}
    for row in table.rows:
        by_workload.setdefault(row.workload, []).append(row)
    for workload, listed in by_workload.items():
        rows = tuple(listed)
        if all(row.time_s is None for row in rows):
            raise ProfileFormatError(f"{table.path}: nothing ran on {workload}")
        known = workload_of(workload)
        points = tuple(
            Point(r.variant, r.knobs, with_derived(r.knobs, r.facts, known), r.soft_rules)
            for r in rows
        )
        default = table.meta.defaults.get(workload)
        start = tuple(i for i, row in enumerate(rows) if row.variant == default)
        try:
            space = Space(points, start)
        except InvalidConfig as error:
            raise ProfileFormatError(f"{table.path}: {workload}: {error}") from None
        found.append(RecordedWorkload(f"{table.name} {workload}", space, rows))
    return found


def knob_types(knobs: Iterable[Mapping[str, Knob]]) -> dict[str, KnobType]:
    """The narrowest type of each knob that holds all its values; raises InvalidConfig for
    words mixed with numbers."""
    kinds: dict[str, set[type]] = {}
    for values in knobs:
        for name, value in values.items():
            kinds.setdefault(name, set()).add(type(value))
    found: dict[str, KnobType] = {}
    for name, types in kinds.items():
        if str in types and len(types) > 1:
            raise InvalidConfig(f"knob {name} has words and numbers")
        order: tuple[tuple[type, KnobType], ...] = ((str, "str"), (float, "float"), (int, "int"))
        found[name] = next((word for kind, word in order if kind in types), "bool")
    return found


def save(path: Path, rows: Sequence[SpaceRow], meta: SpaceMeta) -> None:
    """Write a table; the same rows give the same bytes.  Where a file cannot be written, both are
    as they were.

    Raises InvalidConfig for a name without the suffix and for rows that `load` would not give
    back, and StorageError.
    """
    if not path.name.endswith(SUFFIX):
        raise InvalidConfig(f"{path}: a recorded space's name ends in {SUFFIX}")
    text = io.StringIO(newline="")
    facts = list(dict.fromkeys(name for row in rows for name in row.facts))
    counters = list(dict.fromkeys(name for row in rows for name in row.counters))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [*_FIXED]
        + [_KNOB + name for name in meta.knobs]
        + [_FACT + name for name in facts]
        + [_COUNTER + name for name in counters]
    )
    for row in rows:
        writer.writerow(
            [row.variant, row.workload, row.outcome.value, row.reason]
            + [" ".join(map(repr, row.samples_s)), " ".join(row.soft_rules)]
            + [_written(row.knobs[name], kind) for name, kind in meta.knobs.items()]
            + [_cell(row.facts.get(name)) for name in facts]
            + [_cell(row.counters.get(name)) for name in counters]
        )
    try:
        is_whole = tuple(_rows(path, text.getvalue(), meta)) == tuple(rows)
    except ProfileFormatError as error:
        raise InvalidConfig(f"cannot be written as a recorded space: {error}") from None
    if not is_whole:
        raise InvalidConfig(f"{path}: these rows cannot be written as a recorded space")
    packed = gzip.compress(text.getvalue().encode(), mtime=0)
    meta = replace(meta, table_sha256=hashlib.sha256(packed).hexdigest())
    about = json.dumps(dataclasses.asdict(meta), indent=1, default=str)
    with storage_errors(f"cannot write {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_files({path: packed, meta_path(path): (about + "\n").encode()})


def meta_path(path: Path) -> Path:
    """The file beside a table's rows that says whose they are."""
    return path.with_name(path.name.removesuffix(SUFFIX) + META_SUFFIX)


def load(path: Path) -> SpaceTable:
    """Read a table; raises ProfileFormatError, with the line, for anything that does not fit, and
    for two files that do not belong together."""
    meta = _load_meta(path)
    try:
        packed = read_bytes(path)
        with gzip.GzipFile(fileobj=io.BytesIO(packed)) as file:
            data = file.read(MAX_TEXT_BYTES + 1)
        text = data.decode()
    except FileNotFoundError as error:
        raise StorageError(f"cannot read {path}: {error.strerror}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ProfileFormatError(f"{path} cannot be read: {error}") from None
    if len(data) > MAX_TEXT_BYTES:
        raise ProfileFormatError(f"{path} unpacks to more than {MAX_TEXT_BYTES >> 20} MiB")
    recorded_rows = tuple(_rows(path, text, meta))
    if not recorded_rows:
        raise ProfileFormatError(f"{path} has no rows")
    if meta.table_sha256 not in ("", hashlib.sha256(packed).hexdigest()):
        raise ProfileFormatError(
            f"{path} is not the table that {meta_path(path).name} belongs to: one of them was "
            "changed or replaced without the other; bring back both, or record it again"
        )
    try:
        rows = tuple(row for row in map(_present, recorded_rows) if row is not None)
    except ValueError as error:
        raise ProfileFormatError(f"{path}: {error}") from None
    if not rows:
        raise ProfileFormatError(f"{path}: every config has a knob that was removed")
    if rows != recorded_rows:
        meta = replace(meta, knobs=knob_types(r.knobs for r in rows), defaults=_defaults(meta))
    return SpaceTable(path, meta, rows, len(recorded_rows) - len(rows))


def _present(row: SpaceRow) -> SpaceRow | None:
    """The row with the words of today; None if a knob of it was removed.  Raises ValueError for a
    knob that contradicts the variant's name."""
    now = present_key(row.variant)
    if now is None:
        return None
    knobs, facts = present_words(now)
    if now == row.variant:
        for name in knobs.keys() & row.knobs.keys():
            if knobs[name] != row.knobs[name]:
                text = f"{row.variant} has {_KNOB}{name} {row.knobs[name]}"
                raise ValueError(f"{text}, where its name says {knobs[name]}")
        return row
    return replace(row, variant=now, knobs=knobs, facts=facts | dict(row.facts))


def _defaults(meta: SpaceMeta) -> dict[str, str]:
    found = {workload: present_key(key) for workload, key in meta.defaults.items()}
    return {workload: key for workload, key in found.items() if key is not None}


def find(places: Iterable[Path]) -> list[Path]:
    """The tables among `places`, files (either of a table's two) or folders (searched to any
    depth), sorted.

    Raises StorageError for a place that does not exist and for a folder that holds none,
    ProfileFormatError for a file that is none.
    """
    found: list[Path] = []
    for place in places:
        if place.name.endswith(META_SUFFIX):
            place = place.with_name(place.name.removesuffix(META_SUFFIX) + SUFFIX)
        if place.is_dir():
            check_folder(place)
        inside = sorted(place.rglob(f"*{SUFFIX}")) if place.is_dir() else [place]
        if not inside:
            raise StorageError(f"no recorded space ({SUFFIX}) in {place}")
        if not inside[0].is_file():
            raise StorageError(f"cannot read {place}: it does not exist")
        if not inside[0].name.endswith(SUFFIX):
            raise ProfileFormatError(f"{place} is not a recorded space: its name ends in {SUFFIX}")
        found += inside
    return list(dict.fromkeys(found))


def _load_meta(path: Path) -> SpaceMeta:
    about = meta_path(path)
    try:
        meta = codec.load(SpaceMeta, codec.parse(read_bytes(about)))
    except FileNotFoundError as error:
        raise ProfileFormatError(f"{path} has no readable {about.name}: {error.strerror}") from None
    except ValueError as error:
        raise ProfileFormatError(f"{about}: {error}") from None
    if meta.schema != SCHEMA:
        raise ProfileFormatError(
            f"{about}: schema {meta.schema} is not the one this fa-tune reads ({SCHEMA})"
        )
    return meta


def _rows(path: Path, text: str, meta: SpaceMeta) -> Iterator[SpaceRow]:
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(reader, [])
        if twice := next((name for name in header if header.count(name) > 1), None):
            raise ValueError(f"column {twice!r} is given twice")
        needed = [*_FIXED, *(_KNOB + name for name in meta.knobs)]
        if missing := [name for name in needed if name not in header]:
            raise ValueError(f"column {missing[0]!r} is missing")
        known = [n for n in header if n in needed or n.startswith((_FACT, _COUNTER))]
        if unknown := [name for name in header if name not in known]:
            raise ValueError(f"there is no such column as {unknown[0]!r}")
        for cells in reader:
            if len(cells) != len(header):
                raise ValueError(f"{len(cells)} fields under {len(header)} columns")
            yield _row(dict(zip(header, cells, strict=True)), meta)
    except (ValueError, csv.Error) as error:
        raise ProfileFormatError(f"{path}:{reader.line_num}: {error}") from None


def _row(cells: Mapping[str, str], meta: SpaceMeta) -> SpaceRow:
    outcome = Outcome(cells["outcome"])
    samples = tuple(_number("samples_s", word) for word in cells["samples_s"].split())
    if (outcome is Outcome.OK) != bool(samples):
        raise ValueError(f"outcome {outcome} with {len(samples)} samples")
    if any(s <= 0 for s in samples):
        raise ValueError("a sample is not positive")
    return SpaceRow(
        variant=cells["variant"],
        workload=cells["workload"],
        outcome=outcome,
        knobs={n: _knob(n, cells[_KNOB + n], kind) for n, kind in meta.knobs.items()},
        samples_s=samples,
        reason=cells["reason"],
        soft_rules=tuple(cells["soft_rules"].split()),
        facts=_numbers(cells, _FACT),
        counters=_numbers(cells, _COUNTER),
    )


def _numbers(cells: Mapping[str, str], prefix: str) -> dict[str, float]:
    return {
        name.removeprefix(prefix): _number(name, text)
        for name, text in cells.items()
        if name.startswith(prefix) and text
    }


def _number(name: str, text: str) -> float:
    value = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not math.isfinite(value):
        raise ValueError(f"{name}: {text[:40]!r} is not a finite number")
    return value


def _knob(name: str, text: str, kind: KnobType) -> Knob:
    if kind == "str":
        return text
    if kind == "bool":
        if text not in ("true", "false"):
            raise ValueError(f"{_KNOB}{name}: {text!r} is neither true nor false")
        return text == "true"
    number = _number(_KNOB + name, text)  # what no double holds, no strategy can take
    return int(text) if kind == "int" else number


def _written(value: Knob, kind: KnobType) -> str:
    if kind == "bool":
        return "true" if value else "false"
    return str(value) if kind == "str" else _cell(int(value) if kind == "int" else float(value))


def _cell(value: float | None) -> str:
    return "" if value is None else repr(value)


def present_key(key: str) -> str | None:
    """A variant's key as its family writes it today, beside whose configs it is searched; None
    if it no longer can, and the key itself if no family knows it."""
    try:
        recorded = Variant.from_key(key)
        family = families.get(recorded.family)
    except (InvalidConfig, ValueError):
        return key
    if not family.recognises(recorded.config):
        return key
    now = families.canonical(recorded)
    if now != recorded:
        return now.key
    try:
        family.parse(recorded.config)
    except InvalidConfig:
        return None
    return key


def present_words(key: str) -> tuple[dict[str, Knob], dict[str, float]]:
    """Knobs and facts that a variant's key of today says of it; nothing of one that no family
    knows."""
    try:
        config = families.config_of(Variant.from_key(key))
    except (InvalidConfig, ValueError):
        return {}, {}
    return knobs_of(config), tile_facts(config)
