"""The journal: finished work, one JSON line each, so that nothing finished is ever lost.

A line is written with one `write` and one `fsync` under a file lock; once `append` returns,
the record survives kill -9 and power loss, and two searches may share the file.  A process
killed while writing leaves at most one last line without its newline.  Readers ignore such a
rest and the next writer removes it (or ends it, if only the newline is missing): nobody was
ever told that it had been kept.  Anything else that does not read is damage, and is reported
with its line number instead of being skipped.

    {"kind":"fa-tune journal","version":1}
    {"kind":"fingerprint","digest":"5d1c…","kernel_source_sha256":"…","gpu":"NVIDIA H200",…}
    {"kind":"attempt","fp":"5d1c…","subject":"sm80:(FP16, …","outcome":"ok","measurement":{…}}
    {"kind":"verdict","fp":"…",…}
    {"kind":"build_failure","fp":"…",…}

Every line but the first ends in a checksum, `"crc32":"…"`, of the bytes before it; lines of older
journals have none.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any

from fa_tune.core.errors import JournalError
from fa_tune.core.files import sync_folder
from fa_tune.core.model import Attempt, Verdict
from fa_tune.store.fingerprint import Fingerprint, explain_difference
from fa_tune.store.journal_records import (
    HEADER,
    VERSION,
    AttemptRecord,
    BuildFailureRecord,
    Record,
    VerdictRecord,
    decode_body,
    encode_fingerprint,
    encode_record,
    parse_line,
    parse_lines,
)
from fa_tune.store.shared_files import locked, storage_errors

__all__ = [
    "AttemptRecord",
    "BuildFailureRecord",
    "Fingerprint",
    "Journal",
    "Record",
    "VerdictRecord",
    "explain_difference",
]

_LINES_AT_ONCE = 256  # few enough to stay in the processor's cache
_MEND = "delete that line, or move the file away to start anew; nothing was changed"


class NewerJournal(ValueError):
    """Written by a later version: nothing is wrong with the file."""


class Journal:
    """The records of one journal file, in file order, and the way to add to them.

    Opening reads the file; a missing one is an empty journal and is created by the first
    append.  Raises JournalError for a damaged file or one that is not a journal (it is left
    as it is), StorageError where the disk refuses.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._contents = _Contents()
        self._identity: tuple[int, int] | None = None
        self._mutex = threading.Lock()  # the GPUs of a search write from threads of their own
        self.refresh()

    def records(self) -> tuple[Record, ...]:
        """Every record read or written so far, in file order."""
        return tuple(self._contents.records)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should hear about: a last line that was cut short."""
        n = self._contents.cut_short
        return (f"{self.path}: the last line was cut short ({n} bytes) and is ignored",) * (n > 0)

    def find(self, digest: str, subject: str, workload: str) -> Attempt | None:
        """The last attempt at a subject and workload under a fingerprint's digest, however it
        ended; None if there is none."""
        record = self._contents.attempts.get((digest, subject, workload))
        return record.attempt if record else None

    def find_verdict(self, digest: str, subject: str) -> Verdict | None:
        """The last verdict on a subject under a fingerprint's digest (`for_verify`)."""
        record = self._contents.verdicts.get((digest, subject))
        return record.verdict if record else None

    def find_build_failure(
        self, digest: str, subject: str, traits: str
    ) -> BuildFailureRecord | None:
        """The last failure to build a subject under a fingerprint's digest (`for_build`)."""
        return self._contents.failures.get((digest, subject, traits))

    def history(self, subject: str, workload: str) -> tuple[AttemptRecord, ...]:
        """All attempts at a subject and workload under any fingerprint, oldest first: what
        `explain_difference` is asked about when none of them fits today's."""
        return tuple(
            r
            for r in self._contents.records
            if isinstance(r, AttemptRecord)
            and (r.attempt.subject, r.attempt.workload) == (subject, workload)
        )

    def refresh(self) -> None:
        """Read what others appended since; raises like opening does."""
        with storage_errors(f"cannot read journal {self.path}"):
            try:
                fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._contents, self._identity = _Contents(), None
                return
            try:
                self._catch_up(fd)
            finally:
                os.close(fd)

    def append(self, record: Record) -> None:
        """Add a record; when this returns, it is on the disk.

        Raises StorageError where it cannot be written, JournalError if the file has been
        damaged meanwhile, and ValueError or TypeError for a record that could not be read
        back (those are bugs of the caller).
        """
        line = encode_record(record)
        with storage_errors(f"cannot write journal {self.path}"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._mutex, locked(self.path, "journal"):
                created = not self.path.exists()
                flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
                fd = os.open(self.path, flags, 0o666)
                try:
                    self._catch_up(fd)
                    self._write(fd, line, record.fingerprint)
                    self._catch_up(fd)
                finally:
                    os.close(fd)
                if created:
                    sync_folder(self.path.parent)

    def _write(self, fd: int, line: bytes, fingerprint: Fingerprint) -> None:
        """Mend the end of the file, then add everything the line needs with one write."""
        now = self._contents
        if now.cut_short:
            os.ftruncate(fd, now.offset)
        data = b"\n" if now.newline_missing else b""
        if now.offset == 0:
            data += HEADER
        if fingerprint.digest not in now.fingerprints:
            data += encode_fingerprint(fingerprint)
        data += line
        written = os.write(fd, data)
        if written != len(data):
            # A full disk takes what fits.  Half a line would be tolerated, none is tidier.
            os.ftruncate(fd, now.offset)
            raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes fit on the disk")
        os.fsync(fd)

    def _catch_up(self, fd: int) -> None:
        """Read from where the last reading ended, or everything if it is another file now."""
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity or status.st_size < self._contents.offset:
            self._contents, self._identity = _Contents(), identity
        data = _read_from(fd, self._contents.offset)
        if not self._contents.continued_by(
            os.pread(fd, 1, max(0, self._contents.offset - 1)), data
        ):
            self._contents = _Contents()
            data = _read_from(fd, 0)
        try:
            with _no_garbage_collection():
                self._contents.take(data)
        except BaseException as e:
            # Half-taken contents must not be built upon: the next reading starts afresh.
            line_number, self._contents = self._contents.line_number, _Contents()
            if isinstance(e, NewerJournal):
                raise JournalError(f"{self.path}: {e}") from None
            if isinstance(e, ValueError):
                raise JournalError(f"{self.path}:{line_number}: {e}; {_MEND}") from None
            raise


@dataclass
class _Contents:
    """What has been read of a file, by line, and how far."""

    offset: int = 0  # bytes read and understood
    line_number: int = 0  # lines read; the one at fault when `take` raises
    cut_short: int = 0  # bytes of a last line that do not make a record
    newline_missing: bool = False  # the last record is whole but for its newline
    records: list[Record] = field(default_factory=list)
    fingerprints: dict[str, Fingerprint] = field(default_factory=dict)
    attempts: dict[tuple[str, str, str], AttemptRecord] = field(default_factory=dict)
    verdicts: dict[tuple[str, str], VerdictRecord] = field(default_factory=dict)
    failures: dict[tuple[str, str, str], BuildFailureRecord] = field(default_factory=dict)

    def continued_by(self, before: bytes, data: bytes) -> bool:
        """Whether bytes that follow `offset`, and the one before it, can be a continuation;
        if not, the file was edited and nothing read so far may be relied on."""
        if self.newline_missing:
            return data[:1] in (b"", b"\n")
        return self.offset == 0 or before == b"\n"

    def take(self, data: bytes) -> None:
        """Add what follows `offset` in the file; raises ValueError for a damaged line."""
        if self.newline_missing and data:
            data = data[1:]
            self.offset += 1
            self.newline_missing = False
        *lines, rest = data.split(b"\n")
        if lines and self.line_number == 0:
            self._take_line(lines.pop(0))
        for start in range(0, len(lines), _LINES_AT_ONCE):
            some = lines[start : start + _LINES_AT_ONCE]
            for line, body in zip(some, parse_lines(some) or repeat(None), strict=False):
                self._take_line(line, body)
        self.cut_short = 0
        if rest:
            self._take_rest(rest)

    def _take_rest(self, rest: bytes) -> None:
        """Deal with bytes after the last newline: a record that lacks only its newline
        counts, anything else is ignored, unless the file never was a journal."""
        if self.line_number == 0 and not HEADER.startswith(rest):
            self.line_number = 1
            raise ValueError("not an fa-tune journal")
        try:
            self._take_line(rest)
        except ValueError:
            self.line_number -= 1
            self.cut_short = len(rest)
        else:
            self.offset -= 1
            self.newline_missing = True

    def _take_line(self, line: bytes, body: dict[str, Any] | None = None) -> None:
        """Add one line, given without its newline; `body` is its object where known."""
        self.line_number += 1
        if self.line_number == 1:
            _check_header(line)
        elif line.strip():  # nothing is left where a damaged line was blanked out
            self._add(body if body is not None else parse_line(line))
        self.offset += len(line) + 1

    def _add(self, body: dict[str, Any]) -> None:
        record = decode_body(body, self.fingerprints)
        match record:
            case Fingerprint():
                # Known by its name in the file and by the digest that this version computes.
                self.fingerprints[body["digest"]] = record
                self.fingerprints[record.digest] = record
                return
            case AttemptRecord(attempt=attempt):
                digest = record.fingerprint.digest
                self.attempts[digest, attempt.subject, attempt.workload] = record
            case VerdictRecord():
                self.verdicts[record.fingerprint.digest, record.subject] = record
            case BuildFailureRecord():
                digest = record.fingerprint.digest
                self.failures[digest, record.subject, record.traits] = record
        self.records.append(record)


def _check_header(line: bytes) -> None:
    try:
        header = json.loads(line)
        kind, version = header["kind"], header["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("not an fa-tune journal") from None
    if kind != "fa-tune journal" or type(version) is not int:
        raise ValueError("not an fa-tune journal")
    if version > VERSION:
        raise NewerJournal(
            f"journal version {version} is newer than this fa-tune reads ({VERSION}); update "
            "fa-tune, or move the file away to start anew"
        )


def _read_from(fd: int, offset: int) -> bytes:
    chunks = []
    while chunk := os.pread(fd, 1 << 24, offset):
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Reading only allocates, and the collector's rounds would double its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
