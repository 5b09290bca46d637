"""Damaged files of ours: what is read is what stands in them, or they are refused."""

import dataclasses
import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import FaTuneError
from fa_tune.report.load import parse_report_source
from fa_tune.store import older_journal, recordings
from fa_tune.store.registry import schema
from fa_tune.store.table.columns import BY_HEADING, DTYPE, MILLISECONDS, SAMPLES, TEXT, WHOLE
from fa_tune.store.table.read_csv import parse_rows
from tests.fuzz import short_form_reader, table_reader
from tests.fuzz.mutations import mutants
from tests.project_files import ROOT
from tests.store.test_older_journal import OLD

PROFILES = ROOT / "profiles" / "nvidia_h200"
REGISTRY = Path(__file__).parents[1] / "store" / "registry" / "data" / "schema-6.json"
NUMBERS = ("1e400", "-1", "NaN", "0", "1e-400", "Infinity", "null", "true", '"', "{}", "[]", ",")
NUMBERS += (
    "9" * 400,
    "1e-99999999999999999999",
    "[" * 99 + "]" * 99,
    '"9999-12-31T23:59:59-14:00"',
)
NUMBERS += ('"\\u001b[2J"', '"b900000000_h16_kv16_q1_k4096_d128_fp16_full_page16"', "=1+1")


def _changed(text: str, count: int, name: str, pieces: tuple[str, ...] = NUMBERS) -> list[str]:
    return list(mutants(text, count, random.Random(name), pieces=pieces))


def _refused_or(read: Any, *arguments: Any) -> Any:
    """What a reader gives; None where it refuses.  Anything but a refusal is a failure."""
    try:
        return read(*arguments)
    except FaTuneError as error:
        assert "\n" not in str(error)  # noqa: PT017 - many texts, one test
        return None


TABLE = "".join(
    (PROFILES / "prog_events.csv").read_text("utf-8").splitlines(keepends=True)[:5]
)  # fmt: skip


def test_no_damaged_table_is_misread() -> None:
    assert len(parse_rows(TABLE, "here")) == 4
    for text in _changed(TABLE, 3000, "table", (*NUMBERS, '""', "\n", '",', TABLE[-200:])):
        notes: list[str] = []
        rows = _refused_or(lambda t, n=notes: parse_rows(t, "here", on_note=n.append), text)
        if rows is None:
            continue
        expected = table_reader.read(text)
        assert expected is not None, text
        assert len(rows) == len(expected), text
        for row, cells in zip(rows, expected, strict=True):
            for heading, cell in cells.items():
                if (column := BY_HEADING.get(heading)) is not None:
                    _check_cell(column, getattr(row, column.field), cell.strip(), notes)


def _check_cell(column: Any, value: Any, cell: str, notes: list[str]) -> None:
    if value is None or value == "":
        assert not cell or any("not measured" in note for note in notes), (column.heading, cell)
    elif column.kind is SAMPLES:
        assert [v * 1e3 for v in value] == pytest.approx([float(w) for w in cell.split()])
    elif column.kind is MILLISECONDS:
        assert value * 1e3 == pytest.approx(float(cell))
    elif column.kind is WHOLE:
        assert value == float(cell.replace(",", ""))
    elif column.kind is DTYPE:
        assert cell.upper() in (value.name, str(value.value))
    elif column.kind is TEXT:
        assert value.strip() == cell


def test_report_ends_in_no_traceback() -> None:
    for text in _changed(TABLE, 500, "report"):
        _refused_or(parse_report_source, text.encode("utf-8", "surrogatepass"), Path("here"))


def test_no_damaged_provenance_is_misread(tmp_path: Path) -> None:
    path = tmp_path / "prog_events.csv"
    beside = path.with_suffix(recordings.META_SUFFIX)
    whole = (PROFILES / "prog_events.meta.json").read_text("utf-8")
    for text in _changed(whole, 1500, "provenance", (*NUMBERS, "ncu", "2026", '"method": "ncu",')):
        beside.write_text(text, "utf-8", newline="")
        meta = _refused_or(recordings.load_meta, path)
        if meta is not None:
            stands = json.loads(text)
            read = json.loads(json.dumps(dataclasses.asdict(meta), default=str))
            for name, value in _today(stands).items():
                assert _holds(read[name], value), (name, text)


def _today(stands: Any) -> Any:
    """What stands in a file of schema 1, as schema 2 has it: a ratio with its interval."""
    if isinstance(stands, list):
        return [_today(part) for part in stands]
    if not isinstance(stands, dict):
        return stands
    found = {name: _today(part) for name, part in stands.items()}
    if found.get("schema") == 1:
        found["schema"] = 2
    if "ratio" in found and "interval" in found:
        pair = {"value": found.pop("ratio"), "interval": found.pop("interval")}
        known = any(part is not None for part in pair.values())
        found["ratio" if "n" in found else "to_default"] = pair if known else None
    return found


def _holds(read: Any, stands: Any) -> bool:
    """Whether all that stands in a file is in what was read of it, in its words or today's."""
    if isinstance(stands, dict):
        return isinstance(read, dict) and all(
            name in read and _holds(read[name], value) for name, value in stands.items()
        )
    if isinstance(stands, list) and isinstance(read, list) and len(read) == len(stands):
        return all(any(_holds(r, s) for r in read) for s in stands)
    if isinstance(stands, float | int) and isinstance(read, float):
        return math.isclose(read, stands)
    if isinstance(stands, str) and isinstance(read, str) and read != stands:
        if read.startswith("b") and stands.startswith("b"):
            return re.sub(r"(?<=[a-z])0+", "", stands) == read
        return short_form_reader.read(stands, 0) == short_form_reader.read(read, 0) is not None
    return bool(read == stands)


def test_no_damaged_registry_is_misread() -> None:
    whole = json.dumps(json.loads(REGISTRY.read_text("utf-8")), separators=(",", ":"))
    assert _holds(_read_registry(whole), json.loads(whole))
    for text in _changed(whole, 1500, "registry"):
        read = _refused_or(_read_registry, text)
        if read is not None:
            assert _holds(read, json.loads(text)), text


def _read_registry(text: str) -> Any:
    return json.loads(schema.to_json(schema.from_json(text, "here")))


def test_no_damaged_older_journal_is_misread(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    text = "".join(OLD.read_text().splitlines(keepends=True)[:-1])  # those with checksums
    path.write_text(text)
    records = {repr(record) for record in older_journal.read(path)[0]}
    for changed in _changed(text, 1500, "older", (*NUMBERS, text.splitlines()[2] + "\n", "\n")):
        path.write_bytes(changed.encode("utf-8", "surrogatepass"))
        read = _refused_or(older_journal.read, path)
        if read is not None:
            assert set(map(repr, read[0])) <= records, changed
