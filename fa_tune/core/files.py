"""Reading whole files that a user named."""

from __future__ import annotations

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
