"""Writers that are killed, side by side, or refused by the disk."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest
from filelock import FileLock

from fa_tune.core.errors import StorageError
from fa_tune.store.journal import (
    AttemptRecord,
    Journal,
)
from tests.store.full_disk import refused_with_room
from tests.store.journal_records import (
    attempt,
    fill,
    subject,
)

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / "run.jsonl"


# Several writers, and killed ones


def append_until_killed(path: Path, acknowledge: int) -> None:
    journal = Journal(path)
    for i in range(100_000):
        journal.append(attempt(i))
        os.write(acknowledge, b"%d\n" % i)


def test_kill_9_at_random_moments_loses_no_acknowledged_line(path: Path) -> None:
    rng = random.Random(7)
    expected: list[int] = []
    for _ in range(20):
        read_end, write_end = os.pipe()
        child = FORK.Process(target=append_until_killed, args=(path, write_end))
        child.start()
        os.close(write_end)
        first = os.read(read_end, 1)
        time.sleep(rng.uniform(0.0, 0.05))
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()
        with os.fdopen(read_end, "rb") as pipe:
            acknowledged = [int(line) for line in (first + pipe.read()).split()]
        records = [r for r in Journal(path).records() if isinstance(r, AttemptRecord)]
        added = records[len(expected) :]
        assert len(added) - len(acknowledged) in (0, 1)  # killed between write and telling
        assert added == [attempt(i) for i in range(len(added))]
        expected += range(len(added))
    assert len(expected) >= 20


def append_many(path: Path, first: int, count: int) -> None:
    journal = Journal(path)
    for i in range(first, first + count):
        journal.append(attempt(i))


def test_two_searches_share_a_journal(path: Path) -> None:
    children = [FORK.Process(target=append_many, args=(path, k * 1000, 40)) for k in (0, 1, 2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
        assert child.exitcode == 0
    records = [r for r in Journal(path).records() if isinstance(r, AttemptRecord)]
    subjects = [r.attempt.subject for r in records]
    assert sorted(subjects) == sorted(subject(k * 1000 + i) for k in (0, 1, 2) for i in range(40))


def test_an_open_journal_sees_what_others_append(path: Path) -> None:
    mine, other = Journal(path), Journal(path)
    other.append(attempt(1))
    assert mine.records() == ()
    mine.refresh()
    assert mine.records() == (attempt(1),)
    other.append(attempt(2))
    mine.append(attempt(3))
    assert mine.records() == (attempt(1), attempt(2), attempt(3))


def test_a_file_replaced_or_removed_meanwhile_is_read_anew(path: Path, tmp_path: Path) -> None:
    journal = fill(path, attempt(1), attempt(2))
    fill(tmp_path / "new.jsonl", attempt(3))
    os.replace(tmp_path / "new.jsonl", path)
    journal.refresh()
    assert journal.records() == (attempt(3),)
    path.unlink()
    journal.append(attempt(4))
    assert Journal(path).records() == journal.records() == (attempt(4),)


# Disks that refuse


def test_a_full_disk_is_one_line_and_leaves_the_journal_whole(path: Path) -> None:
    fill(path, attempt(1))
    size = path.stat().st_size
    for room in (0, 20):
        message = refused_with_room(size + room, lambda: Journal(path).append(attempt(2)))
        assert message.startswith(f"cannot write journal {path}: ")
        assert "\n" not in message
        assert path.stat().st_size == size
    assert Journal(path).records() == (attempt(1),)


def test_a_read_only_disk_can_be_read_and_refuses_appends_in_one_line(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(path, attempt(1))
    real_open = os.open

    def read_only_open(file: str, flags: int, *rest: int, **named: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real_open(file, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only_open)
    journal = Journal(path)
    assert journal.records() == (attempt(1),)
    with pytest.raises(StorageError, match=r"cannot write journal .*: Read-only file system"):
        journal.append(attempt(2))


def test_a_path_that_cannot_be_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Not a directory"):
        Journal(tmp_path / "file" / "run.jsonl")
    with pytest.raises(StorageError, match="Is a directory"):
        Journal(tmp_path)


def test_a_lock_held_too_long_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fa_tune.store.shared_files.LOCK_TIMEOUT_S", 0.05)
    journal = fill(path, attempt(1))
    with FileLock(f"{path}.lock"), pytest.raises(StorageError, match="locked by another process"):
        journal.append(attempt(2))
