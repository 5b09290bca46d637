"""A last line cut short loses nothing else; any other damage is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.errors import JournalError
from fa_tune.store.journal import (
    AttemptRecord,
    Journal,
    explain_difference,
)
from tests.store.journal_records import (
    FP,
    attempt,
    build_failure,
    failed,
    fill,
    older,
    verdict,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run.jsonl"


# A last line cut short


def test_truncation_at_every_byte_of_the_last_line_loses_only_that_line(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    records = (attempt(1), failed(2), attempt(3))
    fill(whole, *records)
    data = whole.read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    cut = tmp_path / "cut.jsonl"
    for end in range(last, len(data) + 1):
        cut.write_bytes(data[:end])
        journal = Journal(cut)
        kept = records if end >= len(data) - 1 else records[:-1]
        assert journal.records() == kept, end
        assert bool(journal.warnings) == (last < end < len(data) - 1), end
        assert cut.read_bytes() == data[:end], "reading changes nothing"
        journal.append(attempt(5))
        assert journal.records() == (*kept, attempt(5)), end
        assert Journal(cut).records() == (*kept, attempt(5)), end
        assert not journal.warnings


def test_truncation_anywhere_in_the_first_append_can_be_continued(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    fill(whole, attempt(1))
    data = whole.read_bytes()
    cut = tmp_path / "cut.jsonl"
    for end in range(len(data)):
        cut.write_bytes(data[:end])
        journal = Journal(cut)
        kept = (attempt(1),) if end == len(data) - 1 else ()
        assert journal.records() == kept, end
        journal.append(attempt(5))
        assert Journal(cut).records() == (*kept, attempt(5)), end


def test_a_last_line_of_zeros_after_a_power_cut_is_ignored(path: Path) -> None:
    fill(path, attempt(1))
    with path.open("ab") as f:
        f.write(bytes(300))
    assert Journal(path).records() == (attempt(1),)
    fill(path, attempt(2))
    assert Journal(path).records() == (attempt(1), attempt(2))


# Damage elsewhere


def replace_line(path: Path, number: int, change: Callable[[bytes], bytes]) -> None:
    lines = path.read_bytes().split(b"\n")
    lines[number - 1] = change(older(lines[number - 1]))
    path.write_bytes(b"\n".join(lines))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda line: line[:40], "not JSON"),
        (lambda line: b"\0" * len(line), "not JSON"),
        (lambda line: b"\xff" + line, "not UTF-8"),
        (lambda line: b"[" * 100_000, "nested too deeply"),
        (lambda line: b"[1]", "not a JSON object"),
        (lambda line: b"{}", "'kind' is missing"),
        (lambda line: b'{"kind":"later"}', "unknown kind 'later'"),
        (lambda line: line + b"," + line, "not JSON"),
        (lambda line: line.replace(b'"fp":"', b'"fp":"0'), "is not defined above"),
        (lambda line: line.replace(b'"reason":""', b'"reason":null'), "None is not a text"),
        (lambda line: line.replace(b'"reason":""', b'"r":""'), "'reason' is missing"),
        (lambda line: line.replace(b'"ok"', b'"fine"'), "'fine' is not a valid Outcome"),
        (lambda line: line.replace(b"0.0015", b'"0.0015"'), "'0.0015' is not a number"),
        (lambda line: line.replace(b"0.0015", b"NaN"), "NaN is not a number"),
        (lambda line: line.replace(b"0.0015", b"1e999"), "out of range"),
        (lambda line: line.replace(b"0.0015", b"1" + b"0" * 400), "out of range"),
        (lambda line: line.replace(b"0.0015", b"true"), "True is not a number"),
        (lambda line: line.replace(b"[168.0,", b"["), "not enough values"),
        (lambda line: line.replace(b'{"l2":"cold"}', b"7"), "wrong type"),
    ],
)
def test_damage_in_the_middle_names_the_line_and_touches_nothing(
    path: Path, change: Callable[[bytes], bytes], said: str
) -> None:
    fill(path, attempt(1), attempt(2), attempt(3))
    replace_line(path, 4, change)
    damaged = path.read_bytes()
    with pytest.raises(JournalError) as e:
        Journal(path)
    message = str(e.value)
    assert message.startswith(f"{path}:4: ")
    assert said in message
    assert "delete that line" in message
    assert "\n" not in message
    assert len(message) < 400
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("added", [b"x", b"x" * 30, b"x" * 500])
def test_an_open_journal_notices_that_the_file_was_edited_under_it(
    path: Path, added: bytes
) -> None:
    journal = fill(path, attempt(1), attempt(2))
    edited = older(path.read_bytes()).replace(b'"reason":""', b'"reason":"' + added + b'"', 1)
    path.write_bytes(edited.rstrip(b"\n"))
    journal.append(attempt(3))
    reasons = [r.attempt.reason for r in Journal(path).records() if isinstance(r, AttemptRecord)]
    assert reasons == [added.decode(), "", ""]
    assert journal.records() == Journal(path).records()


def test_deleting_the_damaged_line_mends_the_journal(path: Path) -> None:
    fill(path, attempt(1), attempt(2), attempt(3))
    replace_line(path, 4, lambda line: b"")
    assert Journal(path).records() == (attempt(1), attempt(3))


def test_a_fingerprint_line_without_a_field_is_damage(path: Path) -> None:
    fill(path, attempt(1))
    replace_line(path, 2, lambda line: line.replace(b'"nvrtc"', b'"nvvm"'))
    with pytest.raises(JournalError, match=r":2: unknown field 'nvvm'"):
        Journal(path)
    replace_line(path, 2, lambda line: line.replace(b'"nvvm":"13.0",', b""))
    with pytest.raises(JournalError, match=r":2: field 'nvrtc' is missing"):
        Journal(path)


def test_a_fingerprint_from_before_a_field_was_added_still_serves(path: Path) -> None:
    fill(path, attempt(1))
    replace_line(path, 2, lambda line: line.replace(b',"runs":5', b""))
    (record,) = Journal(path).records()
    assert explain_difference(record.fingerprint, FP) == ["runs"]


@pytest.mark.parametrize("content", [b"notes of mine", b"notes\nof mine", b"\n", b"[1]\n", b"7"])
def test_another_file_is_never_taken_for_a_journal_or_written_to(
    path: Path, content: bytes
) -> None:
    journal = Journal(path)
    path.parent.mkdir()
    path.write_bytes(content)
    for action in (lambda: Journal(path), lambda: journal.append(attempt(1))):
        with pytest.raises(JournalError, match=r":1: not an fa-tune journal"):
            action()
    assert path.read_bytes() == content


def test_a_newer_journal_says_so(path: Path) -> None:
    fill(path, attempt(1))
    replace_line(path, 1, lambda line: line.replace(b"1", b"2"))
    with pytest.raises(JournalError, match="version 2 is newer than this fa-tune reads"):
        Journal(path)


@given(st.integers(0, 10_000), st.binary(max_size=6), st.integers(0, 40))
@settings(max_examples=150)
def test_any_damage_ends_in_a_journal_error_or_records_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, at: int, noise: bytes, removed: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.jsonl"
    path.unlink(missing_ok=True)
    fill(path, attempt(1), verdict(), build_failure())
    data = path.read_bytes()
    at %= len(data)
    path.write_bytes(data[:at] + noise + data[at + removed :])
    try:
        Journal(path)
    except JournalError as e:
        assert str(e).startswith(f"{path}:")  # noqa: PT017 - either end is right


# Checksums


def test_every_line_but_the_first_has_a_checksum_and_older_lines_do_without(path: Path) -> None:
    records = (attempt(1), failed(2), verdict(), build_failure())
    fill(path, *records)
    data = path.read_bytes()
    assert all(b'"crc32":"' in line for line in data.splitlines()[1:])
    path.write_bytes(older(data))
    assert Journal(path).records() == records
    fill(path, attempt(5))
    assert Journal(path).records() == (*records, attempt(5))


def test_a_digit_that_changed_is_noticed(path: Path) -> None:
    fill(path, attempt(1), attempt(2))
    path.write_bytes(path.read_bytes().replace(b"0.0015", b"0.0016", 1))
    with pytest.raises(JournalError, match=r":3: its checksum does not fit"):
        Journal(path)


def test_a_checksum_that_cannot_be_read_is_damage_and_no_older_line(path: Path) -> None:
    fill(path, attempt(1), attempt(2))
    path.write_bytes(path.read_bytes().replace(b'"crc32"', b'"crc33"'))
    with pytest.raises(JournalError, match=r":2: unknown field"):
        Journal(path)


def test_a_later_version_is_not_called_damage(path: Path) -> None:
    fill(path, attempt(1))
    path.write_bytes(path.read_bytes().replace(b'"version":1', b'"version":99', 1))
    with pytest.raises(JournalError, match="update fa-tune") as error:
        Journal(path)
    assert "delete that line" not in str(error.value)
