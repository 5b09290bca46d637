"""The journal gives back what was put in, whoever is killed, whatever is damaged."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.errors import FaTuneError, JournalError, StorageError
from fa_tune.core.model import Attempt, Measurement, Outcome, Quantity
from fa_tune.store.fingerprint import Fingerprint, explain_difference
from fa_tune.store.journal import AttemptRecord, BuildFailureRecord, Journal, VerdictRecord
from tests.store.full_disk import (
    killed,
    make_read_only,
    refused_with_room,
    side_by_side,
    take_locks_away,
)
from tests.store.journal_records import (
    FP,
    WORKLOAD,
    attempt,
    build_failure,
    failed,
    fill,
    subject,
    verdict,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "journal.sqlite"


def changed(path: Path, statement: str, *values: Any) -> None:
    """Something else than a journal changes the file."""
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement, values)


# What goes in comes out


def test_every_kind_of_record_comes_back_as_it_went_in(path: Path) -> None:
    records = (attempt(1), failed(2), verdict(), build_failure(), attempt(1, time_s=2.0))
    written = fill(path, *records)
    assert written.records() == records
    assert Journal(path).records() == records


def test_a_missing_journal_is_empty_and_reading_creates_nothing(path: Path) -> None:
    assert Journal(path).records() == ()
    assert not path.parent.exists()


def test_find_returns_the_last_attempt_under_that_fingerprint_only(path: Path) -> None:
    other = dataclasses.replace(FP, driver="590.1")
    fill(path, attempt(1, time_s=1.0), attempt(1, time_s=2.0), attempt(1, other, 3.0), failed(2))
    journal = Journal(path)
    found = journal.find(FP.digest, subject(1), WORKLOAD)
    assert found.measurement.samples_s[0] == 2.0
    assert journal.find(FP.digest, subject(3), WORKLOAD) is None
    assert journal.find(FP.digest, subject(1), "b1_h1_kv1_q1_k1_d64_fp16_full") is None
    assert journal.find(dataclasses.replace(FP, runs=6).digest, subject(1), WORKLOAD) is None
    crashed = journal.find(FP.digest, subject(2), WORKLOAD)
    assert crashed.outcome is Outcome.CRASHED
    history = journal.history(subject(1), WORKLOAD)
    assert [r.fingerprint.driver for r in history] == ["580.65", "580.65", "590.1"]


def test_verdicts_and_build_failures_are_found_by_what_they_depend_on(path: Path) -> None:
    journal = fill(path, verdict(), build_failure())
    kept_verdict, kept_failure = journal.records()
    events = dataclasses.replace(FP, method="events", runs=50, metrics=()).for_verify()
    assert journal.last(VerdictRecord, events.digest, subject(1), "") == kept_verdict
    elsewhere = dataclasses.replace(FP, gpu="NVIDIA A100", driver="1")
    found = journal.last(BuildFailureRecord, elsewhere.for_build().digest, subject(2), "traits")
    assert found == kept_failure
    assert journal.last(BuildFailureRecord, FP.for_build().digest, subject(2), "other") is None
    assert journal.last(VerdictRecord, elsewhere.for_verify().digest, subject(1), "") is None


def test_a_verdict_keeps_figures_that_are_not_finite(path: Path) -> None:
    fill(path, verdict(float("nan")), verdict(float("inf")))
    nan, inf = Journal(path).records()
    assert isinstance(nan, VerdictRecord)
    assert isinstance(inf, VerdictRecord)
    assert nan.verdict.cases[0].max_abs_error != nan.verdict.cases[0].max_abs_error
    assert inf.verdict.cases[0].max_abs_error == float("inf")


texts = st.text(max_size=20)
finite = st.floats(allow_nan=False, allow_infinity=False)
measured = st.builds(
    Measurement,
    texts,
    st.just(WORKLOAD),
    st.just("events"),
    st.lists(finite, max_size=5).map(tuple),
    st.dictionaries(texts, st.builds(Quantity, finite, texts), max_size=3),
    st.dictionaries(texts, texts, max_size=3),
    relative=st.lists(finite, max_size=2).map(tuple),
    preference=st.none() | st.integers(),
    scaled_by=st.none() | finite,
    versions=st.dictionaries(texts, texts, max_size=2),
)


@given(st.lists(measured, min_size=1, max_size=3), st.sampled_from(Outcome))
@settings(max_examples=15, deadline=None)
def test_any_attempts_round_trip(
    tmp_path_factory: pytest.TempPathFactory, found: list[Measurement], outcome: Outcome
) -> None:
    path = tmp_path_factory.mktemp("any") / "journal.sqlite"
    records = tuple(
        AttemptRecord(FP, Attempt(m.subject, WORKLOAD, outcome, m.subject, m)) for m in found
    )
    fill(path, *records)
    assert Journal(path).records() == records
    last = {r.attempt.subject: r.attempt for r in records}
    for name, expected in last.items():
        assert Journal(path).find(FP.digest, name, WORKLOAD) == expected


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(subject(1), WORKLOAD, "ncu", (float("nan"),)),
        Measurement(subject(1), WORKLOAD, "ncu", (float("inf"),)),
        Measurement(subject(1), WORKLOAD, "ncu", ("1.5",)),  # type: ignore[arg-type]
        Measurement(subject(1), WORKLOAD, "ncu", (1.0,), {"m": Quantity(float("nan"), "s")}),
        Measurement(subject(2), WORKLOAD, "ncu", (1.0,)),
    ],
)
def test_a_record_that_could_not_be_read_back_never_reaches_the_file(
    path: Path, measurement: Measurement
) -> None:
    journal = fill(path, attempt(1))
    with pytest.raises((ValueError, TypeError)):
        journal.append(
            AttemptRecord(FP, Attempt(subject(1), WORKLOAD, Outcome.OK, "", measurement))
        )
    assert Journal(path).records() == (attempt(1),)


# Fingerprints


def test_a_fingerprint_ignores_the_order_of_metrics_and_nothing_else() -> None:
    a = dataclasses.replace(FP, metrics=("x", "y"))
    assert a == dataclasses.replace(FP, metrics=("y", "x", "x"))
    assert a.digest == dataclasses.replace(FP, metrics=("y", "x")).digest
    digests = {FP.digest}
    for f in dataclasses.fields(Fingerprint):
        change = {"metrics": ("other",), "runs": 6, "after": 1}.get(f.name, "other")
        other = dataclasses.replace(FP, **{f.name: change})  # type: ignore[arg-type]
        digests.add(other.digest)
        assert explain_difference(FP, other) == [f.name]
    assert len(digests) == 1 + len(dataclasses.fields(Fingerprint))
    assert explain_difference(FP, FP) == []


def test_a_fingerprint_from_before_a_field_was_added_still_serves(path: Path) -> None:
    fill(path, attempt(1))
    kept = json.loads(json.dumps(dataclasses.asdict(FP)))
    del kept["runs"]
    changed(path, "UPDATE fingerprints SET body = ?", json.dumps(kept))
    (past,) = Journal(path).history(subject(1), WORKLOAD)
    assert explain_difference(past.fingerprint, FP) == ["runs"]


# Damage


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("UPDATE records SET body = replace(body, '0.0015', '0.0016') WHERE id = 2", "checksum"),
        ("UPDATE records SET body = X'00' WHERE id = 2", "checksum"),
        ("DELETE FROM fingerprints", "fingerprint 1 is missing"),
        ("UPDATE fingerprints SET body = '{}'", "is missing"),
        ("UPDATE fingerprints SET body = '[]'", "fingerprint 1"),
        ("UPDATE fingerprints SET body = replace(body, 'aaaa', 'aaab')", "checksum"),
        ("UPDATE records SET kind = 'later'", "unknown kind 'later'"),
        ("PRAGMA user_version = 99", "update fa-tune"),
        ("PRAGMA application_id = 7", "not an fa-tune journal"),
        ("DROP TABLE records", "no such table"),
    ],
)
def test_damage_is_one_line_and_nothing_is_written(path: Path, statement: str, said: str) -> None:
    fill(path, attempt(1), attempt(2), attempt(3))
    changed(path, statement)
    damaged = path.read_bytes()
    # What was changed is found before any work.
    read = Journal if said == "checksum" else lambda path: Journal(path).records()
    with pytest.raises((JournalError, StorageError)) as error:
        read(path)
    assert str(path) in str(error.value)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("content", [b"notes of mine", b"notes\nof mine" * 1000, b"\n", b"{}"])
def test_another_file_is_never_taken_for_a_journal_or_written_to(
    path: Path, content: bytes
) -> None:
    journal = Journal(path)
    path.parent.mkdir()
    path.write_bytes(content)
    for action in (lambda: Journal(path), lambda: journal.append(attempt(1))):
        with pytest.raises(JournalError, match="move the file away"):
            action()
    assert path.read_bytes() == content


def test_another_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    changed(path, "CREATE TABLE mine (id)")
    before = path.read_bytes()
    with pytest.raises(JournalError, match="not an fa-tune journal"):
        fill(path, attempt(1))
    assert path.read_bytes() == before


def test_names_in_no_encoding_are_damage(path: Path) -> None:
    fill(path, attempt(1))
    changed(path, "PRAGMA journal_mode = DELETE")
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"by_subject", b"by_\x80ubject", 1))
    with pytest.raises(JournalError, match="move the file away"):
        Journal(path)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_damage_ends_in_one_line_or_in_records_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "noise"
    shutil.rmtree(folder, ignore_errors=True)
    path = folder / "journal.sqlite"
    records = (attempt(1), verdict(), build_failure(), *(attempt(i) for i in range(2, 9)))
    fill(path, *records)
    changed(path, "PRAGMA journal_mode = DELETE")  # all of it in one file
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=40))
    cut = data.draw(st.booleans())
    path.write_bytes(whole[:at] if cut else whole[:at] + noise + whole[at + len(noise) :])
    try:
        read = Journal(path).records()
    except FaTuneError as error:
        assert str(path) in str(error)  # noqa: PT017 - either end is right
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert set(map(repr, read)) <= set(map(repr, records))


# Several writers, and killed ones


def append_until_killed(path: Path, acknowledge: int) -> None:
    journal = Journal(path)
    for i in range(100_000):
        journal.append(attempt(i))
        os.write(acknowledge, b"%d\n" % i)


@pytest.mark.parametrize("locks", [True, False])
def test_kill_9_at_random_moments_loses_no_acknowledged_record(
    path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not locks:
        take_locks_away(monkeypatch)
    rng = random.Random(7)
    expected: list[int] = []
    for _ in range(12):
        told = killed(partial(append_until_killed, path), rng.uniform(0.0, 0.05))
        acknowledged = [int(line) for line in told.split()]
        records = Journal(path).records()
        added = records[len(expected) :]
        assert len(added) - len(acknowledged) in (0, 1)  # killed between write and telling
        assert added == tuple(attempt(i) for i in range(len(added)))
        expected += range(len(added))
    assert len(expected) >= 12


def append_many(path: Path, first: int, count: int) -> None:
    journal = Journal(path)
    for i in range(first, first + count):
        journal.append(attempt(i))


@pytest.mark.parametrize("locks", [True, False])
def test_searches_share_a_journal(path: Path, locks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not locks:
        take_locks_away(monkeypatch)
    writers = (partial(append_many, path, k * 1000, 20) for k in (0, 1, 2))
    side_by_side(*writers, meanwhile=lambda: Journal(path).records())
    subjects = [r.about[0] for r in Journal(path).records()]
    assert sorted(subjects) == sorted(subject(k * 1000 + i) for k in (0, 1, 2) for i in range(20))


def test_an_open_journal_sees_what_others_append_and_a_file_that_was_replaced(
    path: Path, tmp_path: Path
) -> None:
    mine, other = Journal(path), Journal(path)
    other.append(attempt(1))
    assert mine.records() == (attempt(1),)
    mine.append(attempt(2))
    fill(tmp_path / "new.sqlite", attempt(3))
    changed(tmp_path / "new.sqlite", "PRAGMA journal_mode = DELETE")
    os.replace(tmp_path / "new.sqlite", path)
    for left in path.parent.glob("*-wal"):
        left.unlink()
    assert mine.records() == (attempt(3),)


# Disks that refuse


def test_a_full_disk_is_one_line_and_leaves_the_journal_whole(path: Path) -> None:
    fill(path, attempt(1))
    changed(path, "PRAGMA journal_mode = DELETE")
    for room in (0, 20, 5000):
        size = path.stat().st_size
        message = refused_with_room(size + room, lambda: fill(path, *map(attempt, range(99))))
        assert message.startswith(f"cannot write journal {path}: ")
        assert "\n" not in message
    kept = Journal(path).records()
    assert kept[0] == attempt(1)
    assert kept[1:] == tuple(map(attempt, range(len(kept) - 1))) or len(kept) < 99


def test_a_folder_that_takes_nothing_can_be_read_and_refuses_appends_in_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, attempt(1))
    changed(path, "PRAGMA journal_mode = DELETE")
    make_read_only(monkeypatch)
    monkeypatch.setattr(os, "access", lambda *_: False)
    journal = Journal(path)
    assert journal.records() == (attempt(1),)
    with pytest.raises(StorageError, match=r"cannot write journal .*read-?only"):
        journal.append(attempt(2))


def test_a_path_that_cannot_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Not a directory"):
        Journal(tmp_path / "file" / "journal.sqlite")
    with pytest.raises(StorageError, match=str(tmp_path)):
        Journal(tmp_path)
