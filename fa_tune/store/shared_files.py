"""Files that several processes write: one at a time, and with what the disk refuses told in one
line."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from fa_tune.core.errors import StorageError
from fa_tune.core.files import storage_errors

LOCK_TIMEOUT_S = 60.0
POLL_S = 0.01
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # the file system's answer
OF_A_NETWORK = re.compile(
    r"nfs|cifs|smb|lustre|gpfs|beegfs|ceph|afs|9p|gluster|pvfs|orangefs|fuse\.(?!overlay)"
)


@contextlib.contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Alone with a file, which messages call `what`: by a lock of the system, or where the file
    system has none, by a file that only one process is able to create.  Raises StorageError after
    a minute, and OSError where no lock can be made."""
    until = time.monotonic() + LOCK_TIMEOUT_S
    mark = Path(f"{path}.held")
    made = False
    with _lock_file(path) as fd:
        while not (taken := _taken(fd)):
            if taken is None and (made := _made(mark)):
                break
            if time.monotonic() > until:
                raise StorageError(
                    f"{what} {path} has been locked by another process for "
                    f"{LOCK_TIMEOUT_S:.0f} s; wait for it or end it"
                )
            time.sleep(POLL_S)
        try:
            yield
        finally:
            if made:
                mark.unlink(missing_ok=True)


@contextlib.contextmanager
def _lock_file(path: Path) -> Iterator[int]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(f"{path}.lock", flags, 0o644)
    try:
        yield fd
    finally:
        os.close(fd)


def check_lockable(path: Path, what: str) -> None:
    """Raise StorageError where `locked` would not get a file of that folder, which is there, to
    itself, however long it waited."""
    trial = path.with_name(f".{path.name}.{os.getpid()}")
    with storage_errors(f"cannot lock {what} {path}"):
        try:
            with locked(trial, what):
                pass
        finally:
            Path(f"{trial}.lock").unlink(missing_ok=True)


def has_locks(path: Path) -> bool:
    """Whether the system locks what stands beside a file, and no other machine writes there: what
    a database needs for several to use it at a time.  Raises OSError."""
    with _lock_file(path) as fd:
        return _taken(fd) is not None and not is_of_a_network(path.parent)


def _taken(fd: int) -> bool | None:
    """Whether the system's lock on a file is ours now; None where the file system has none."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def _made(mark: Path) -> bool:
    """Whether the mark is ours now; that of a process of this machine that is gone is removed.

    A link that points nowhere: it is there with its owner's name at once, also for whoever is
    killed in the middle."""
    here = socket.gethostname()
    try:
        os.symlink(f"{here} {os.getpid()}", mark)
    except FileExistsError:
        with contextlib.suppress(OSError, ValueError):
            host, _, pid = os.readlink(mark).partition(" ")
            if host == here and not Path(f"/proc/{int(pid)}").exists():
                mark.unlink(missing_ok=True)
        return False
    return True


def is_of_a_network(folder: Path) -> bool:
    """Whether a folder is on a file system that other machines may write as well."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return False
    here = os.path.realpath(folder)
    mounts = [(line.split()[1], line.split()[2]) for line in lines]
    around = [(m, kind) for m, kind in mounts if f"{here}/".startswith(f"{m.rstrip('/')}/")]
    return bool(around) and OF_A_NETWORK.match(max(around, key=lambda a: len(a[0]))[1]) is not None
