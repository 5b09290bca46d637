"""The journal: finished work, kept as it ends, so that nothing finished is ever lost.

An SQLite file.  Once `append` returns, the record survives kill -9 and power loss, and several
searches may write and read at once.  Where the file system has no locks, or other machines write
it as well, one at a time opens the file, reads or writes, and closes it again.

    fingerprints  id, body                                     what records depend on, once each
    records       id, kind, fingerprint, subject, place, body, crc32

`body` is the JSON of a record or a fingerprint (`core.codec`), of the latter with the `crc32` of
the rest; `place` a record's workload or traits; `crc32` of its body, since SQLite does not notice a
digit that changed.  What is damaged is reported, and never written to.  A journal of older
versions, JSON lines, is taken over once and stays as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from fa_tune.core import codec
from fa_tune.core.errors import JournalError
from fa_tune.core.files import storage_errors, sync_folder
from fa_tune.core.model import Attempt
from fa_tune.store import older_journal
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal_records import (
    KINDS,
    AttemptRecord,
    BuildFailureRecord,
    Record,
    VerdictRecord,
)
from fa_tune.store.shared_files import LOCK_TIMEOUT_S, has_locks, locked

VERSION = 2
OURS = 0x66617475  # SQLite's application_id
ALONE = "nolock=1"
OLDER = ".jsonl"  # how a journal of version 1 is called
R = TypeVar("R", AttemptRecord, VerdictRecord, BuildFailureRecord)
_SQLITE = b"SQLite format 3\0"
_CHANGED = "its checksum does not fit: the record was changed"
_MEND = "move the file away to start anew; nothing was changed"
_TABLES = (
    "CREATE TABLE fingerprints (id INTEGER PRIMARY KEY, body TEXT NOT NULL UNIQUE)",
    "CREATE TABLE records (id INTEGER PRIMARY KEY, kind TEXT NOT NULL, "
    "fingerprint INTEGER NOT NULL, subject TEXT NOT NULL, place TEXT NOT NULL, "
    "body TEXT NOT NULL, crc32 INTEGER NOT NULL)",
    "CREATE INDEX by_subject ON records (subject, place, kind)",
    f"PRAGMA application_id = {OURS}",
    f"PRAGMA user_version = {VERSION}",
)


class Journal:
    """The records of one journal file, in the order they were added, and the way to add to them.

    A missing file is an empty journal and is created by the first append.  Opening and reading
    raise JournalError for a damaged file or one that is no journal (it is left as it is), and
    StorageError where the disk refuses.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._db: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self.warnings: tuple[str, ...] = ()  # of an older journal, for its reader
        self._fingerprints: dict[int, Fingerprint] = {}
        self._mutex = threading.RLock()  # the GPUs of a search write from threads of their own
        self._process = os.getpid()
        with self._opened("read") as db:  # damage is better found before any work than after it
            if db is None:
                return
            for number, body, crc in db.execute("SELECT id, body, crc32 FROM records"):
                if _crc32(body) != crc:
                    raise self._damage(f"record {number}: {_CHANGED}")
            for (number,) in db.execute("SELECT id FROM fingerprints").fetchall():
                self._fingerprint(db, number)

    def __del__(self) -> None:
        if self._db is not None and self._process == os.getpid():  # not a fork's to close
            self._db.close()

    def records(self) -> tuple[Record, ...]:
        return tuple(self._select(""))

    def find(self, digest: str, subject: str, workload: str) -> Attempt | None:
        """The last attempt at a subject and workload under a fingerprint's digest, however it
        ended; None if there is none."""
        record = self.last(AttemptRecord, digest, subject, workload)
        return record.attempt if record else None

    def last(self, kind: type[R], digest: str, *about: str) -> R | None:
        """The last record of a kind that is `about` this, under a fingerprint's digest."""
        where = "WHERE subject = ? AND place = ? AND kind = ? ORDER BY id DESC"
        for record in self._select(where, *about, kind.kind, digest=digest):
            assert isinstance(record, kind)
            return record
        return None

    def history(self, subject: str, workload: str) -> tuple[AttemptRecord, ...]:
        """All attempts at a subject and workload under any fingerprint, oldest first: what
        `explain_difference` is asked about when none of them fits today's."""
        found = self._select(
            "WHERE subject = ? AND place = ? AND kind = 'attempt'", subject, workload
        )
        return tuple(r for r in found if isinstance(r, AttemptRecord))

    def append(self, record: Record) -> None:
        """Add a record; when this returns, it is on the disk.

        Raises StorageError where it cannot be written, JournalError if the file has been
        damaged meanwhile, and ValueError or TypeError for a record that could not be read
        back (those are bugs of the caller).
        """
        body = _body(record)
        with self._opened("write") as db:
            assert db is not None
            with db:
                db.execute("BEGIN IMMEDIATE")
                _insert(db, record, body)

    # Reading ---------------------------------------------------------------------------------

    def _select(self, where: str, *values: str, digest: str = "") -> Iterator[Record]:
        """Records, those with a fingerprint of this digest if one is given."""
        with self._opened("read") as db:
            if db is None:
                return
            columns = "SELECT id, kind, fingerprint, body, crc32 FROM records "
            for number, kind, by, body, crc in db.execute(columns + where, values):
                fingerprint = self._fingerprint(db, by)
                if digest in ("", fingerprint.digest):
                    yield self._record(number, kind, fingerprint, body, crc)

    def _fingerprint(self, db: sqlite3.Connection, number: int) -> Fingerprint:
        if number not in self._fingerprints:
            row = db.execute("SELECT body FROM fingerprints WHERE id = ?", (number,)).fetchone()
            if row is None:
                raise self._damage(f"fingerprint {number} is missing")
            try:
                self._fingerprints[number] = _read_fingerprint(row[0])
            except (ValueError, TypeError, AttributeError) as error:
                raise self._damage(f"fingerprint {number}: {error}") from None
        return self._fingerprints[number]

    def _record(
        self, number: int, kind: str, fingerprint: Fingerprint, body: str, crc: int
    ) -> Record:
        try:
            if _crc32(body) != crc:
                raise ValueError(_CHANGED)
            if kind not in KINDS:
                raise ValueError(f"unknown kind {kind!r}")
            raw = {**codec.parse(body), "fingerprint": fingerprint}
            return codec.load(KINDS[kind], raw)
        except (ValueError, TypeError, AttributeError) as error:
            raise self._damage(f"record {number}: {error}") from None

    def _damage(self, what: object) -> JournalError:
        return JournalError(f"{self.path}: {what}; {_MEND}")

    # The file --------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _opened(self, do: str) -> Iterator[sqlite3.Connection | None]:
        """The file open to read or to write, for which it is created; None if it is missing."""
        doing = f"cannot {do} journal {self.path}"
        with self._mutex, storage_errors(doing):
            try:
                with contextlib.ExitStack() as held:
                    yield self._connection(held, writing=do == "write")
            except sqlite3.OperationalError as error:
                raise OSError(None, f"{error}") from None
            except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # its words of names in it
                raise self._damage(error) from None

    def _connection(
        self, held: contextlib.ExitStack, *, writing: bool
    ) -> sqlite3.Connection | None:
        found = self._found()
        if self._db is not None and found == self._identity:
            return self._db  # else it is another file now
        if self._db is not None:
            self._db.close()
        self._db, self._fingerprints = None, {}
        if found is None and not writing and self._older() is None:
            return None
        places = [self.path.parent, *([self.path] if found else [])]
        if not writing and not all(os.access(place, os.W_OK) for place in places):
            if found is None:
                self._db = sqlite3.connect(":memory:", **_OPTIONS)
                self._create(self._db)
            else:
                self._db = _connected(self.path, "mode=ro&immutable=1")
            self._identity = found
            return self._checked(self._db)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not has_locks(self.path):
            held.enter_context(locked(self.path, "journal"))
            db = held.enter_context(contextlib.closing(_connected(self.path, ALONE)))
            return self._ready(db)
        with locked(self.path, "journal"):
            self._db = self._ready(_connected(self.path, ""), wal=True)
        self._identity = self._found()
        return self._db

    def _found(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return None
        return status.st_dev, status.st_ino

    def _ready(self, db: sqlite3.Connection, *, wal: bool = False) -> sqlite3.Connection:
        """The file as a journal; a new or empty one is made one."""
        if self._is_new(db):
            if wal:  # where that does not hold, it is as before
                db.execute("PRAGMA journal_mode = WAL")
            with db:
                db.execute("BEGIN IMMEDIATE")
                self._create(db)
            sync_folder(self.path.parent)
        return self._checked(db)

    def _create(self, db: sqlite3.Connection) -> None:
        for statement in _TABLES:
            db.execute(statement)
        if (older := self._older()) is not None:
            records, warning = older_journal.read(older)
            self.warnings = (warning,) if warning else ()
            for record in records:
                _insert(db, record, _body(record))

    def _older(self) -> Path | None:
        older = self.path.with_suffix(OLDER)
        return older if older != self.path and older.exists() else None

    def _is_new(self, db: sqlite3.Connection) -> bool:
        """Whether the file is as SQLite creates it; it takes one byte for that, too."""
        if _pragma(db, "user_version") or _pragma(db, "schema_version"):
            return False
        with self.path.open("rb") as file:
            return file.read(len(_SQLITE)) in (b"", _SQLITE)

    def _checked(self, db: sqlite3.Connection) -> sqlite3.Connection:
        version = _pragma(db, "user_version")
        if _pragma(db, "application_id") != OURS:
            raise JournalError(f"{self.path}: not an fa-tune journal; {_MEND}")
        if version > VERSION:
            raise JournalError(
                f"{self.path}: journal version {version} is newer than this fa-tune reads "
                f"({VERSION}); update fa-tune, or move the file away to start anew"
            )
        return db


_OPTIONS: dict[str, Any] = {
    "timeout": LOCK_TIMEOUT_S,
    "isolation_level": None,
    "check_same_thread": False,
}


def _connected(path: Path, parameters: str) -> sqlite3.Connection:
    db: sqlite3.Connection = sqlite3.connect(
        f"file:{quote(str(path.absolute()))}?{parameters}", uri=True, **_OPTIONS
    )
    db.execute("PRAGMA synchronous = FULL")
    if parameters == ALONE:  # without memory that several share
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = DELETE")
    return db


def _crc32(body: object) -> int:
    return zlib.crc32(body.encode()) if isinstance(body, str) else -1


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _body(record: Record) -> str:
    """The JSON of a record, which can be read back."""
    raw = codec.dump(record)
    fingerprint = codec.load(Fingerprint, raw.pop("fingerprint"))
    text = json.dumps(raw, separators=(",", ":"), allow_nan=False)
    codec.load(type(record), {**codec.parse(text), "fingerprint": fingerprint})
    return text


def _sorted(raw: Mapping[str, Any]) -> str:
    return json.dumps(raw, sort_keys=True)


def _read_fingerprint(body: str) -> Fingerprint:
    """The fingerprint of a row, whose JSON has its checksum; earlier rows have none."""
    raw = codec.parse(body)
    crc = raw.pop("crc32", None)
    if crc is not None and _crc32(_sorted(raw)) != crc:
        raise ValueError(_CHANGED)
    return codec.load(Fingerprint, raw)


def _insert(db: sqlite3.Connection, record: Record, body: str) -> None:
    raw = codec.dump(record.fingerprint)
    kept = _sorted({**raw, "crc32": _crc32(_sorted(raw))})
    db.execute("INSERT OR IGNORE INTO fingerprints (body) VALUES (?)", (kept,))
    (by,) = db.execute("SELECT id FROM fingerprints WHERE body = ?", (kept,)).fetchone()
    db.execute(
        "INSERT INTO records (kind, fingerprint, subject, place, body, crc32) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        (record.kind, by, *record.about, body, _crc32(body)),
    )
