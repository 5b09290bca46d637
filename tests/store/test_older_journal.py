"""Journals of older versions, JSON lines, are taken over once and stay as they are."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fa_tune.core.errors import JournalError
from fa_tune.core.model import Attempt, Measurement, Outcome
from fa_tune.store.journal import AttemptRecord, Journal
from tests.store.journal_records import (
    FP,
    WORKLOAD,
    attempt,
    build_failure,
    failed,
    subject,
    verdict,
)

OLD = Path(__file__).parent / "data" / "journal-1.jsonl"  # by the last version that wrote these


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "journal.sqlite"


EVERY_FIELD = Measurement(
    *("sm80:a", WORKLOAD, "events", (1e-3, 2e-3), {}, {"clocks": "unlocked"}),
    relative=(0.98, 1.01),
    preference=0,
    host_launch_s=1.2e-05,
    search="heat 0a",
    gpu_uuid="GPU-1",
    scaled_by=0.952381,
    replayed_from="nvidia_h200/tune.csv",
    default_s=(1.1e-3, 2e-3),
    held_out_s=(1.05e-3,),
    held_out_relative=(0.99,),
    versions={"torch": "2.11.0", "cudnn": "9.13.0"},
    baseline=subject(2),
)
OLDEST = dataclasses.replace(
    EVERY_FIELD, subject="sm80:b", versions={}, held_out_s=(), held_out_relative=(), baseline=""
)


def test_lines_of_all_ages_are_taken_over_once_and_left_in_place(path: Path) -> None:
    path.parent.mkdir()
    older = path.with_suffix(".jsonl")
    shutil.copy(OLD, older)
    journal = Journal(path)
    kept = journal.records()
    assert repr(kept) == repr(
        tuple(
            dataclasses.replace(record, recorded_at="2026-01-02")
            for record in (
                *(attempt(1), failed(2), verdict(float("nan")), build_failure()),
                *(
                    AttemptRecord(FP, Attempt(m.subject, WORKLOAD, Outcome.OK, "", m))
                    for m in (EVERY_FIELD, OLDEST)
                ),
            )
        )
    )
    assert journal.find(FP.digest, "sm80:b", WORKLOAD) == kept[-1].attempt  # type: ignore[union-attr]
    assert older.read_bytes() == OLD.read_bytes()
    older.write_text("no longer asked")
    journal.append(attempt(7))
    assert len(Journal(path).records()) == len(kept) + 1


def test_an_older_journal_is_read_where_nothing_can_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    shutil.copy(OLD, path.with_suffix(".jsonl"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert len(Journal(path).records()) == 6
    assert os.listdir(path.parent) == ["journal.jsonl"]


def test_an_older_last_line_that_was_cut_short_is_told(path: Path) -> None:
    path.parent.mkdir()
    path.with_suffix(".jsonl").write_bytes(OLD.read_bytes()[:-40])
    journal = Journal(path)
    assert len(journal.records()) == 5
    assert any("cut short" in warning for warning in journal.warnings)
    assert not Journal(path).warnings


@pytest.mark.parametrize(
    "change",
    [
        lambda line: line[:40],
        lambda line: b"\xff" + line,
        lambda line: b"[" * 100_000,
        lambda line: b"[1]",
        lambda line: b"{}",
        lambda line: b'{"kind":"later"}',
        lambda line: line.replace(b'"fp":"', b'"fp":"0'),
        lambda line: line.replace(b"0.0015", b"0.0016"),
        lambda line: line.replace(b'"reason":""', b'"reason":"","reason":""'),
    ],
)
def test_damage_in_an_older_journal_names_the_line_and_writes_nothing(
    path: Path, change: Callable[[bytes], bytes]
) -> None:
    path.parent.mkdir()
    older = path.with_suffix(".jsonl")
    lines = OLD.read_bytes().split(b"\n")
    older.write_bytes(b"\n".join([*lines[:2], change(lines[2]), *lines[3:]]))
    for action in (lambda: Journal(path), lambda: Journal(path).append(attempt(1))):
        with pytest.raises(JournalError) as error:
            action()
        assert str(error.value).startswith(f"{older}:3: ")
        assert "\n" not in str(error.value)
    older.write_bytes(OLD.read_bytes())
    assert len(Journal(path).records()) == 6, "what was begun is made whole"


def test_a_digest_is_that_of_earlier_versions() -> None:
    digests = [json.loads(line).get("digest") for line in OLD.read_text().splitlines()]
    assert [d for d in digests if d] == [f.digest for f in (FP, FP.for_verify(), FP.for_build())]
