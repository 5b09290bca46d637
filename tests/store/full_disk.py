"""Writers of which there are several, that are killed, or that a file system refuses room, writing
or locks."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Callable

import pytest

from fa_tune.core.errors import StorageError

FORK = multiprocessing.get_context("fork")


def refused_with_room(n_bytes: int, write: Callable[[], object]) -> str:
    """What `write` says when a file may have so many bytes at most; "" if it says nothing.  It runs
    in a process of its own, which has that limit."""
    read_end, write_end = os.pipe()

    def write_with_little_room() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, resource.RLIM_INFINITY))
        try:
            write()
        except StorageError as e:
            os.write(write_end, str(e).encode())

    child = FORK.Process(target=write_with_little_room)
    child.start()
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        message = pipe.read().decode()
    child.join()
    return message


def side_by_side(*writers: Callable[[], object], meanwhile: Callable[[], object]) -> None:
    """Each writer in a process of its own; `meanwhile` is called until all have ended well."""
    children = [FORK.Process(target=writer) for writer in writers]
    for child in children:
        child.start()
    while any(child.is_alive() for child in children):
        meanwhile()
    for child in children:
        child.join()
        assert child.exitcode == 0


def killed(writer: Callable[[int], None], after_s: float) -> bytes:
    """What a writer has told, through the file descriptor that it is given, until it is killed so
    long after its first byte."""
    read_end, write_end = os.pipe()
    child = FORK.Process(target=writer, args=(write_end,))
    child.start()
    os.close(write_end)
    first = os.read(read_end, 1)
    time.sleep(after_s)
    child.kill()
    child.join()
    with os.fdopen(read_end, "rb") as pipe:
        return first + pipe.read()


def make_read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file, from now on."""
    real_open = os.open

    def read_only_open(file: str, flags: int, *rest: int, **named: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(file))
        return real_open(file, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only_open)


def take_locks_away(monkeypatch: pytest.MonkeyPatch, answer: int = errno.ENOLCK) -> None:
    """The system answers so where it is asked for a lock."""

    def refuse(*_: object) -> None:
        raise OSError(answer, os.strerror(answer))

    monkeypatch.setattr(fcntl, "flock", refuse)
