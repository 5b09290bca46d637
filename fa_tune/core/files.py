"""Files that a user named: read whole, and asked before the work whether they can be written."""

from __future__ import annotations

import os
from pathlib import Path

from fa_tune.core.errors import StorageError

MAX_BYTES = 1 << 30


def read_bytes(path: Path, what: str = "") -> bytes:
    """What a file or pipe holds, which is opened once; `what` says what it is, for messages.

    Raises StorageError if it cannot be read or has no end, and FileNotFoundError.
    """
    shown = f"{what} {path}".strip()
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise StorageError(f"cannot read {shown}: {reason}") from error
    if len(data) > MAX_BYTES:
        raise StorageError(f"cannot read {shown}: it has more than {MAX_BYTES >> 20} MiB")
    return data


def check_writable(path: Path, instead: str, *, replaced: bool = False) -> None:
    """Raise StorageError where nothing could be written to a file, or in a folder, of this path,
    missing folders made.  `replaced`: by something written beside it, so the folder around it
    counts.  `instead` names what to give for another place, for messages."""
    around = path.resolve().parent if replaced else path
    while not around.exists() and around != around.parent:
        around = around.parent
    if around != path and not around.is_dir():
        raise StorageError(f"cannot write {path}: {around} is not a folder; {instead}")
    if not os.access(around, os.W_OK):
        raise StorageError(f"cannot write {path}: {around} is not writable; {instead}")
