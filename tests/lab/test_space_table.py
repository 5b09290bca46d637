"""A recorded space is what was recorded, whatever that was, and says when it cannot be read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fa_tune.core.errors import FaTuneError, InvalidConfig, ProfileFormatError, StorageError
from fa_tune.core.model import DeviceInfo, Outcome
from fa_tune.lab import space_table
from fa_tune.lab.space_table import (
    SUFFIX,
    SpaceMeta,
    SpaceRow,
    SpaceTable,
    find,
    knob_types,
    load,
    meta_path,
    recorded,
    save,
)
from fa_tune.search.strategies.base import Knob
from tests.store.full_disk import refused_with_room

WORKLOAD = "b16_h16_kv16_q4096_k4096_d128_fp16_full"
H200 = DeviceInfo("NVIDIA H200", (9, 0), "580.65.06", 150_000_000_000)
TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12)
WORD = st.text("abcdefghij_", min_size=1, max_size=8)
TIME = st.floats(1e-9, 1e3)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)
KINDS: dict[str, st.SearchStrategy[Knob]] = {
    "bool": st.booleans(),
    "int": st.integers(-(2**40), 2**40),
    "float": NUMBER,
    "str": TEXT,
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[SpaceRow], SpaceMeta]:
    knobs = draw(st.dictionaries(WORD, st.sampled_from(sorted(KINDS)), min_size=1, max_size=4))
    names = draw(st.lists(TEXT, min_size=1, max_size=6, unique=True))
    rows = []
    for name in names:
        outcome = draw(st.sampled_from(Outcome))
        samples = st.lists(TIME, min_size=1, max_size=4) if outcome is Outcome.OK else st.just([])
        rows.append(
            SpaceRow(
                variant=name,
                workload=draw(st.sampled_from([WORKLOAD, "other"])),
                outcome=outcome,
                knobs={n: draw(KINDS[kind]) for n, kind in knobs.items()},
                samples_s=tuple(draw(samples)),
                reason=draw(TEXT),
                soft_rules=tuple(draw(st.lists(WORD, max_size=2))),
                facts=draw(st.dictionaries(WORD, NUMBER, max_size=3)),
                counters=draw(st.dictionaries(WORD, NUMBER, max_size=3)),
            )
        )
    return rows, SpaceMeta(knobs, H200, None, {"a": "byte"}, {WORKLOAD: names[0]}, draw(TEXT))  # type: ignore[arg-type]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(tables())
def test_what_is_written_is_read(tmp_path: Path, written: tuple[list[SpaceRow], SpaceMeta]) -> None:
    rows, meta = written
    path = tmp_path / f"a{SUFFIX}"
    save(path, rows, meta)
    table = load(path)
    assert (list(table.rows), table.meta) == (rows, meta)
    once = path.read_bytes()
    save(path, table.rows, table.meta)
    assert path.read_bytes() == once


def simple(times: list[float | None], workload: str = WORKLOAD) -> list[SpaceRow]:
    return [
        SpaceRow(
            f"v{i}",
            workload,
            Outcome.CRASHED if t is None else Outcome.OK,
            {"n": i, "flag": i % 2 == 0},
            () if t is None else (t,),
            facts={"registers": 100.0 + i},
        )
        for i, t in enumerate(times)
    ]


META = SpaceMeta({"n": "int", "flag": "bool"}, H200, defaults={WORKLOAD: "v1"})


def test_each_workload_is_a_space_with_its_default(tmp_path: Path) -> None:
    rows = simple([2.0, 1.0, None]) + simple([5.0, 4.0], "other")
    first, second = recorded(SpaceTable(tmp_path / f"wide{SUFFIX}", META, tuple(rows)))
    assert first.name == f"wide {WORKLOAD}"
    assert first.times_s == (2.0, 1.0, None)
    assert first.space.start == (1,)
    assert first.space.points[2].facts == {"registers": 102.0}
    assert second.space.start == ()
    path = tmp_path / f"x{SUFFIX}"
    with pytest.raises(ProfileFormatError, match="nothing ran on b16"):
        recorded(SpaceTable(path, META, tuple(simple([None, None]))))
    with pytest.raises(ProfileFormatError, match="v0 is in the space twice"):
        recorded(SpaceTable(path, META, (*simple([1.0]), *simple([1.0]))))


def test_the_time_of_a_row_is_the_median() -> None:
    row = SpaceRow("v", WORKLOAD, Outcome.OK, {}, (3.0, 1.0, 2.0))
    assert row.time_s == 2.0
    assert SpaceRow("v", WORKLOAD, Outcome.TIMED_OUT, {}).time_s is None
    found = knob_types([{"a": True, "b": 1, "c": "x"}, {"a": False, "b": 2.5, "c": "1"}])
    assert found == {"a": "bool", "b": "float", "c": "str"}
    assert knob_types([{"a": True}, {"a": 2}]) == {"a": "int"}
    with pytest.raises(InvalidConfig, match="words and numbers"):
        knob_types([{"a": "x"}, {"a": 2}])


def _damaged(tmp_path: Path, old: str, new: str) -> Path:
    path = tmp_path / f"x{SUFFIX}"
    save(path, simple([2.0, 1.0]), META)
    text = gzip.decompress(path.read_bytes()).decode()
    assert old in text
    path.write_bytes(gzip.compress(text.replace(old, new, 1).encode()))
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("v1,", "v1,,", ":3: 10 fields under 9 columns"),
        (",ok,", ",fine,", ":2: 'fine' is not a valid Outcome"),
        (",2.0,", ",,", ":2: outcome ok with 0 samples"),
        (",101.0", ",many", ":3: fact.registers: 'many'"),
        ("knob.n", "knob.m", ":1: column 'knob.n' is missing"),
        ("soft_rules", "samples_s", ":1: column 'samples_s' is given twice"),
        (",1,false", ",1_0,false", ":3: knob.n: '1_0'"),
    ],
)
def test_damage_is_named_with_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = _damaged(tmp_path, old, new)
    with pytest.raises(ProfileFormatError) as caught:
        load(path)
    assert message in str(caught.value)


def test_files_that_are_no_tables_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    save(path, simple([2.0]), META)
    whole = path.read_bytes()
    for damage in (whole[: len(whole) // 2], b"", b"plain text"):
        path.write_bytes(damage)
        with pytest.raises(ProfileFormatError, match=r"cannot be read|is missing"):
            load(path)
    path.write_bytes(gzip.compress(gzip.decompress(whole).splitlines(keepends=True)[0]))
    with pytest.raises(ProfileFormatError, match="has no rows"):
        load(path)
    path.write_bytes(whole)
    about = json.loads(meta_path(path).read_text())
    for change, message in (
        ({"schema": 99}, "schema 99"),
        ({"knobs": {"n": "complex"}}, "knobs"),
    ):
        meta_path(path).write_text(json.dumps(about | change))
        with pytest.raises(ProfileFormatError, match=message):
            load(path)
    meta_path(path).unlink()
    with pytest.raises(ProfileFormatError, match=r"no readable x\.space\.json"):
        load(path)


@pytest.mark.parametrize("first", [Path, meta_path])
def test_a_kill_between_the_two_files_is_noticed(
    tmp_path: Path, first: Callable[[Path], Path]
) -> None:
    """Whichever of a new table's files took its place alone: the other is of the old one."""
    path, other = tmp_path / f"x{SUFFIX}", tmp_path / f"y{SUFFIX}"
    save(path, simple([2.0]), META)
    save(other, simple([3.0]), META)
    first(path).write_bytes(first(other).read_bytes())
    with pytest.raises(ProfileFormatError, match="belongs to"):
        load(path)


def test_a_gzip_that_never_ends_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"x{SUFFIX}"
    save(path, simple([2.0] * 9), META)
    monkeypatch.setattr(space_table, "MAX_TEXT_BYTES", 300)
    with pytest.raises(ProfileFormatError, match="unpacks to more"):
        load(path)


def test_a_knob_that_contradicts_the_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    name = "sm90:sm90(FP16, 128, 128x128): stages_2+overlap"
    row = replace(simple([2.0])[0], variant=name, knobs={"B_c": 128})
    save(path, [row], replace(META, knobs={"B_c": "int"}))
    assert load(path).rows == (row,)
    save(path, [replace(row, knobs={"B_c": 64})], replace(META, knobs={"B_c": "int"}))
    with pytest.raises(ProfileFormatError, match=r"knob\.B_c 64"):
        load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"samples_s": (1.0,) * 40_000},
        {"reason": "\0\n" * 70_000},
        {"knobs": {"n": 1.5, "flag": True}},
    ],
)
def test_what_could_not_be_read_is_not_written(tmp_path: Path, change: dict[str, Any]) -> None:
    path = tmp_path / f"x{SUFFIX}"
    save(path, simple([2.0]), META)
    before = load(path)
    (row,) = simple([3.0])
    with pytest.raises(InvalidConfig, match="recorded space"):
        save(path, [replace(row, **change)], META)
    assert load(path) == before


def test_many_workloads_take_no_square_of_the_time(tmp_path: Path) -> None:
    """Each row is looked at once, however many workloads there are."""
    looked = 0

    class Row(SpaceRow):
        def __getattribute__(self, name: str) -> Any:
            nonlocal looked
            looked += name == "workload"
            return super().__getattribute__(name)

    rows = [Row(**vars(row)) for n in range(50) for row in simple([1.0], f"w{n}")]
    looked = 0
    assert len(recorded(SpaceTable(tmp_path / f"x{SUFFIX}", META, tuple(rows)))) == 50
    assert looked <= 2 * 50


def test_a_full_disk_leaves_the_old_table(tmp_path: Path) -> None:
    path = tmp_path / f"x{SUFFIX}"
    save(path, simple([1.0]), META)
    before = load(path)
    longer = replace(META, note="long " * 1000)
    room = path.stat().st_size + 200  # enough for the rows alone
    message = refused_with_room(room, lambda: save(path, simple([2.0]), longer))
    assert message.startswith(f"cannot write {path}: ")
    assert load(path) == before


def test_places_are_searched_to_any_depth(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / f"x{SUFFIX}"
    save(deep, simple([1.0]), META)
    assert find([tmp_path, deep, meta_path(deep)]) == [deep]
    (tmp_path / "empty").mkdir()
    (tmp_path / "x.csv").write_text("")
    for place, message in (
        (tmp_path / "empty", "no recorded space"),
        (tmp_path / "n", "not exist"),
        (tmp_path / "x.csv", r"its name ends in \.space\.csv\.gz"),
    ):
        with pytest.raises(FaTuneError, match=message):
            find([place])
    with pytest.raises(InvalidConfig, match="ends in"):
        save(tmp_path / "x.csv", simple([1.0]), META)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot write"):
        save(tmp_path / "file" / f"x{SUFFIX}", simple([1.0]), META)


@pytest.fixture
def _one_family() -> None:
    """All of them: the words are sm90's."""


def test_recorded_configs_have_the_words_of_today(tmp_path: Path) -> None:
    """A word that changed is read as the present one; what cannot be written is left out."""
    words = ["stages_2+overlap+carry", "stages_2+overlap", "stages_2+overlap+stagger"]
    old = [f"sm90:sm90(FP16, 128, 128x128, 2): {w}" for w in words]
    rows = [replace(row, variant=v) for row, v in zip(simple([2.0, 1.0, 3.0]), old, strict=True)]
    path = tmp_path / f"old{SUFFIX}"
    save(path, rows, replace(META, defaults={WORKLOAD: old[0]}))
    table = load(path)
    assert [row.variant for row in table.rows] == [
        "sm90:sm90(FP16, 128, 128x128): stages_2+overlap+cross_tile_overlap",
        "sm90:sm90(FP16, 128, 128x128): stages_2+overlap",
    ]
    assert table.left_out == 1
    assert table.rows[0].knobs["cross_tile_overlap"] is True
    assert table.rows[1].knobs["mma_warpgroups"] == 2
    assert table.rows[1].facts["B_r"] == 128  # was a knob
    assert list(table.meta.knobs) == list(table.rows[0].knobs)
    assert recorded(table)[0].space.start == (0,)
