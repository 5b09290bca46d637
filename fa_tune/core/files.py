"""Files: read whole, replaced whole, and asked before the work whether they can be written."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fa_tune.core import codec
from fa_tune.core.errors import ProfileFormatError, StorageError

MAX_BYTES = 1 << 30
PIECE_BYTES = 1 << 20  # a large one reserves as much at once


@contextlib.contextmanager
def storage_errors(action: str) -> Iterator[None]:
    """Errors of the system as StorageError, which begins with `action`."""
    try:
        yield
    except OSError as e:
        raise StorageError(f"{action}: {e.strerror or e}") from e


def read_bytes(path: Path, what: str = "") -> bytes:
    """What a file or pipe holds, which is opened once; `what` says what it is, for messages.

    Raises StorageError if it cannot be read or has no end, and FileNotFoundError.
    """
    shown = f"{what} {path}".strip()
    try:
        data = bytearray()
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                data += piece
                if len(data) > MAX_BYTES:
                    raise OSError(None, f"it has more than {MAX_BYTES >> 20} MiB")
        return bytes(data)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, MemoryError) as error:  # ValueError: a zero in the name
        reason = error.strerror if isinstance(error, OSError) else error or "too little memory"
        raise StorageError(f"cannot read {shown}: {reason}") from error


def read_json(path: Path) -> Any:
    """What a JSON file holds.  Raises StorageError for one that cannot be read, ProfileFormatError
    for one that is no JSON (`codec.parse`)."""
    with storage_errors(f"cannot read {path}"):
        data = read_bytes(path)
    try:
        return codec.parse(data.decode())
    except ValueError as error:  # also a number of 5000 digits
        raise ProfileFormatError(f"{path} cannot be read as JSON: {error}") from None


def check_folder(folder: Path) -> None:
    """Raise StorageError for a folder that cannot be listed: a search in it would find nothing."""
    with storage_errors(f"cannot read {folder}"):
        os.scandir(folder).close()


def check_own(*paths: Path) -> None:
    """Raise StorageError where one of these, if it is there, is another user's (root's is fine) or
    may be changed by other users: what they hold is run."""
    for path in paths:
        with contextlib.suppress(OSError):  # what cannot be looked at cannot be read either
            found = path.stat()
            others = stat.S_IWOTH if found.st_mode & stat.S_ISVTX == 0 else 0
            if found.st_gid != os.getegid():  # the user's own group writes where umask is 002
                others |= stat.S_IWGRP
            shared = found.st_mode & others
            if shared or found.st_uid not in (0, os.geteuid()):
                why = "other users may write it" if shared else "it is another user's"
                raise StorageError(
                    f"not taking code from {path}: {why}; name another folder with --cache-dir "
                    "or FA_TUNE_CACHE_DIR"
                )


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


def check_replaceable(path: Path, instead: str) -> None:
    """`check_writable` of a file that `replace_files` is to write."""
    check_writable(path, instead)
    if not is_stream(path):
        check_writable(path, instead, replaced=True)


def replace_file(path: Path, data: bytes, *, alone: bool = False, synced: bool = True) -> None:
    """`replace_files` of one."""
    replace_files({path: data}, alone=alone, synced=synced)


def save_file(path: Path, data: bytes) -> None:
    """`replace_file` for what a user named; raises StorageError."""
    with storage_errors(f"cannot write {path}"):
        replace_file(path, data)


def replace_files(
    contents: Mapping[Path, bytes], *, alone: bool = False, synced: bool = True
) -> None:
    """Put data in the place of files, each whole or not at all; where one cannot be written, none
    is replaced.  They are renamed in the order given.

    A link stays a link and a file's mode stays; what is no file (`/dev/stdout`, a pipe) is
    written to.  `alone`: the caller holds a lock that every writer takes, and what a killed one
    left is overwritten.  Not `synced`: it may be lost if the power fails.  Raises OSError, which
    says so where the files are replaced, but the disk does not promise to keep them.
    """
    written = {}
    try:
        for path, data in contents.items():
            if is_stream(path):
                path.write_bytes(data)
                continue
            target = Path(os.path.realpath(path))
            own = "" if alone else f"{os.getpid()}-{time.monotonic_ns()}."
            temporary = target.with_name(f".{target.name}.{own}new")
            written[temporary] = target
            _write(temporary, data, like=target, synced=synced)
        for temporary, target in written.items():
            temporary.replace(target)
    except BaseException:
        for temporary in written:
            with contextlib.suppress(OSError):
                temporary.unlink()
        raise
    if synced:
        for folder in {target.parent for target in written.values()}:
            try:
                sync_folder(folder)
            except OSError as error:
                why = f"it is replaced, but may be lost if the power fails ({error.strerror})"
                raise OSError(error.errno, why) from error


def is_stream(path: Path) -> bool:
    """Whether a path is a device, a pipe or what a shell opened, in whose place no file belongs."""
    opened = str(path.absolute()).startswith(("/dev/std", "/dev/fd/", "/proc/self/fd/"))
    return opened or (path.exists() and not path.is_file() and not path.is_dir())


def _write(path: Path, data: bytes, *, like: Path, synced: bool) -> None:
    path.unlink(missing_ok=True)  # of a killed writer, or of whoever else may write there
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(fd, "wb") as file:
        with contextlib.suppress(FileNotFoundError):
            os.fchmod(file.fileno(), like.stat().st_mode & 0o777)
        file.write(data)
        if synced:
            file.flush()
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Until the names in a folder are on the disk."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
