"""Whatever `fa-tune report` is pointed at, as rows: our CSV, the classic one, ncu's, a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fa_tune.core.errors import FaTuneError, InvalidConfig, ProfileFormatError, StorageError
from fa_tune.core.files import read_bytes, storage_errors
from fa_tune.core.workload_parts import PARTS
from fa_tune.profile.ncu.parse import profile_of
from fa_tune.report.from_ncu import rows_from_launches
from fa_tune.store.table.checks import implausible, named
from fa_tune.store.table.columns import BY_FIELD
from fa_tune.store.table.partial_workload import PartialWorkload
from fa_tune.store.table.read_csv import looks_like_ours, parse_rows, text_of
from fa_tune.store.table.rows import Row, completed, ordered

Note = Callable[[str], None]
START_BYTES = 4096  # in which the heading lies
MOST_VALUES = 10  # of a column that a note names


def load_report_source(
    path: str | Path,
    stated: PartialWorkload | None = None,
    *,
    decimal: str | None = None,
    on_note: Note | None = None,
) -> list[Row]:
    """The rows of a file or folder, in table order, rates and percentages filled in.

    A folder gives the rows of the CSV files directly in it, each file's rows compared among
    themselves only (`Row.source` is the file's name); a file that is none of ours is left out with
    a note, unless all are.  `stated` fills in what a file does
    not say.  `decimal` is the separator in ncu's numbers (None: found out).  `on_note` gets one
    line for each thing that a reader should know.

    Raises StorageError for a path that cannot be read, ProfileFormatError for a file that is
    none of these; its message says what to do instead where the file is recognised.  InvalidConfig
    where a kernel's name or grid says otherwise than `stated`.
    """
    path = Path(path)
    note = on_note or (lambda _: None)

    def load(file: Path) -> list[Row]:
        try:
            data = read_bytes(file)
        except FileNotFoundError:
            raise StorageError(f"cannot read {file}: no such file or folder") from None
        return parse_report_source(data, file, stated, decimal=decimal, on_note=note)

    if not path.is_dir():
        return load(path)
    files = _csv_files(path)
    rows: list[Row] = []
    broken: list[FaTuneError] = []
    for file in files:
        source = file.name if len(files) > 1 else ""
        try:
            rows += [replace(row, source=source) for row in load(file)]
        except (ProfileFormatError, StorageError) as error:
            broken.append(error)
    if len(broken) == len(files):
        raise broken[0]
    for left_out in broken:
        note(f"warning: left out: {left_out}")
    return ordered(rows)


def _csv_files(folder: Path) -> list[Path]:
    with storage_errors(f"cannot read {folder}"):
        files = sorted(p for p in folder.iterdir() if p.suffix == ".csv" and p.is_file())
        deeper = [] if files else sorted(set(_folders_with_csv(folder)))
    if not files:
        # Subfolders hold other GPUs' recordings, which one table must not mix.
        hint = f"; name one of {', '.join(map(str, deeper[:3]))}" if deeper else ""
        raise StorageError(f"no .csv file in {folder}{hint}")
    return files


def _folders_with_csv(folder: Path) -> Iterator[Path]:
    """Those below it, less what is hidden, such as an environment."""
    for path in folder.rglob("*.csv"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path.parent


def parse_report_source(
    data: bytes,
    path: Path,
    stated: PartialWorkload | None = None,
    *,
    decimal: str | None = None,
    on_note: Note | None = None,
) -> list[Row]:
    """The rows of a file whose bytes are at hand; `path` is its name in messages.  Else as
    `load_report_source`; raises ProfileFormatError."""
    _refuse_other_formats(path, data)
    note, stated = on_note or (lambda _: None), stated or PartialWorkload()
    # ncu's own files may be in other encodings.
    if looks_like_ours(data[:START_BYTES].decode("utf-8-sig", errors="replace")):
        return _rows_of_ours(text_of(data, path), path, stated, note)
    profile = profile_of(data, path, decimal=decimal)
    for warning in profile.warnings:
        note(f"{path}: {warning}")
    try:
        return rows_from_launches(
            profile.launches, given=stated, on_note=lambda text: note(f"{path}: {text}")
        )
    except (InvalidConfig, ProfileFormatError) as error:
        raise type(error)(f"{path}: {error}") from None


def _rows_of_ours(text: str, path: Path, stated: PartialWorkload, note: Note) -> list[Row]:
    parsed = parse_rows(text, str(path), on_note=note)
    for row in parsed:
        if wrong := implausible(row):
            raise ProfileFormatError(f"{path}: {named(row, wrong)}")
    rows = [row for row in parsed if _is_of(stated, PartialWorkload.of(row))]
    if parsed and not rows:
        note(f"{path}: {_none_selected(stated, [PartialWorkload.of(row) for row in parsed])}")
    return completed(_stated(PartialWorkload.of(row), stated).apply_to(row) for row in rows)


def _stated(parts: PartialWorkload, given: PartialWorkload) -> PartialWorkload:
    """A row's workload with what the options say of parts that it lacks.  Where it says all sizes
    it lacks none, and the options have selected it."""
    if parts.workload is not None:
        return parts
    return parts.merge(given).fill_defaults().settled()


def _is_of(given: PartialWorkload, parts: PartialWorkload) -> bool:
    """Whether a row says nothing else than the options, by whatever name.  Where it says all sizes
    it says everything, since a column that no row needs is left out."""
    workload = parts.workload
    if workload is None:
        return given.agrees_with(parts)
    return given.merge(parts).workload == workload


def _none_selected(given: PartialWorkload, held: Sequence[PartialWorkload]) -> str:
    """Which options select none of the rows, and what the rows have: `no row has batch 3 (they have
    4, 8)`."""
    asked = {name: value for name in PARTS if (value := getattr(given, name)) is not None}
    shown = {name: f"{name} {_value(name, value)}" for name, value in asked.items()}
    without = [
        name
        for name, value in asked.items()
        if not any(_is_of(PartialWorkload(**{name: value}), parts) for parts in held)
    ]
    if not without:
        return f"no row has {' and '.join(shown.values())} together"
    told = []
    for name in without:
        values = {getattr(parts, name) for parts in held} - {None}
        some = [_value(name, value) for value in sorted(values)]
        if len(some) > MOST_VALUES:
            some = [*some[:MOST_VALUES], "…"]
        they = f"they have {', '.join(some)}" if some else "they have none"
        told.append(f"{shown[name]} ({they})")
    return f"no row has {' or '.join(told)}"


def _value(name: str, value: object) -> str:
    return BY_FIELD[name].kind.text(value)


def _refuse_other_formats(path: Path, data: bytes) -> None:
    """Name what cannot be a table of measurements, and the way to one."""
    if path.name.endswith(".meta.json"):
        beside = path.name.removesuffix(".meta.json") + ".csv"
        raise ProfileFormatError(f"{path} describes a recording; give {beside} beside it instead")
    if path.name.endswith(".space.csv.gz"):
        raise ProfileFormatError(f"{path} is a recorded space; it is shown by: fa-tune spaces show")
    if data.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"["):
        raise ProfileFormatError(
            f"{path} is JSON, not a table of measurements; "
            "a registry is shown by: fa-tune registry show"
        )
