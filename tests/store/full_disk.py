"""Writing where there is little room left."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Callable

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
