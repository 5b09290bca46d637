"""Files that several processes write: one at a time, and with what the disk refuses told in one
line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fa_tune.core.errors import StorageError

LOCK_TIMEOUT_S = 60.0


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Alone with a file, which messages call `what`.  Raises StorageError after a minute, and
    OSError where no lock can be made."""
    place = Path(f"{path}.lock")
    if not place.exists():
        place.touch(mode=0o644)  # FileLock would wait where a folder takes no files
    lock = FileLock(place, timeout=LOCK_TIMEOUT_S, poll_interval=0.01)
    try:
        lock.acquire()
    except Timeout:
        raise StorageError(
            f"{what} {path} has been locked by another process for "
            f"{LOCK_TIMEOUT_S:.0f} s; wait for it or end it"
        ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Errors of the system as StorageError, which begins with `action`."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{action}: {e.strerror or e}") from e
