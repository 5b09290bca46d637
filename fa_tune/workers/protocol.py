"""Messages between a supervisor (`workers.supervisor`) and its worker (`workers.main`).

    supervisor ── job.json ──────────────────────────────────▶ worker
    supervisor ◀─ progress: RS {json} LF, RS {json} LF, … ──── worker

The job file is written before the worker starts.  The progress file is only ever appended
to, one `write` per record, and tailed by the supervisor.  A file rather than a pipe or
stdout, because the worker may run below a profiler that closes descriptors and mixes its
own lines, and the kernels' output, into the streams.  Records are framed like RFC 7464
JSON text sequences: the leading RS lets a reader find its feet again after a torn record,
the final LF tells a whole record from one whose writer died in the middle.

NaN and the infinities cross as Python's json spells them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

from fa_tune.core.outcome import Outcome

RECORD_SEPARATOR = b"\x1e"
# In a worker's folder.
JOB, PROGRESS, STDOUT, STDERR = "job.json", "progress", "stdout.log", "stderr.log"


class EventKind(StrEnum):
    """The kind of a record; the first line of each group names who writes it."""

    # the worker itself
    STARTED = "started"  # value: {"pid": …, "start_ticks": …} of the worker
    UNUSABLE = "unusable"  # the handler cannot be imported; text says why
    RAISED = "raised"  # the handler raised; text is the exception in one line
    FINISHED = "finished"  # the handler returned
    # the handler, through its Report
    BEGIN = "begin"  # item; timeout_s replaces the job's default
    PARTIAL = "partial"  # item, value
    DONE = "done"  # item, value: final
    FAILED = "failed"  # item, outcome, text: final
    STICKY_ERROR = "sticky_error"  # item, text: final, and the worker leaves
    # the reader
    GARBLED = "garbled"  # a line that is no record; text shows its beginning


@dataclass(frozen=True)
class Event:
    """One record.  Fields that a kind does not use keep their defaults and are not sent."""

    kind: EventKind
    item: str = ""
    value: Any = None
    text: str = ""
    outcome: Outcome | None = None
    timeout_s: float | None = None


def encode(event: Event) -> bytes:
    """The record of an event; raises TypeError or ValueError if its value is not JSON."""
    present = {
        field.name: getattr(event, field.name)
        for field in fields(event)
        if field.name == "kind" or getattr(event, field.name) not in ("", None)
    }
    # ensure_ascii (the default) keeps RS and LF, which frame records, out of the text.
    return RECORD_SEPARATOR + json.dumps(present, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> Event:
    """The event of one line without its LF; a line that is no record gives GARBLED."""
    _, separator, text = line.rpartition(RECORD_SEPARATOR)
    try:
        if not separator:
            raise ValueError("no record separator")
        present = json.loads(text)
        present["kind"] = EventKind(present["kind"])
        if "outcome" in present:
            present["outcome"] = Outcome(present["outcome"])
        return Event(**present)
    except (ValueError, TypeError, KeyError):
        return Event(EventKind.GARBLED, text=repr(line[:200]))


class ProgressReader:
    """Follows a progress file; a line still without its LF is left for later."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0  # of the first byte not read
        self._unfinished = b""

    def read(self) -> list[Event]:
        """The events of all lines completed since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            news = file.read()
        self._offset += len(news)
        *lines, self._unfinished = (self._unfinished + news).split(b"\n")
        return [decode(line) for line in lines]


@dataclass(frozen=True)
class ProcessRef:
    """A process, distinct from a later one that was given the same pid (Linux: reads /proc)."""

    pid: int
    start_ticks: int  # clock ticks after boot

    @classmethod
    def of(cls, pid: int) -> ProcessRef | None:
        """The process now running as `pid`; None if there is none or only its zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        # proc(5): `pid (name) state …`, where the name may hold spaces and brackets; the
        # start time is field 22.
        state, *rest = stat[stat.rindex(")") + 1 :].split()
        return None if state in "ZX" else cls(pid, int(rest[18]))

    @classmethod
    def me(cls) -> ProcessRef:
        """The calling process."""
        ref = cls.of(os.getpid())
        assert ref is not None, "this process is running"
        return ref

    def is_alive(self) -> bool:
        """Whether that very process still runs."""
        return ProcessRef.of(self.pid) == self


@dataclass(frozen=True)
class JobFile:
    """The work of one worker: `handler` is "module:function", all else is JSON."""

    handler: str
    shared: Mapping[str, Any]
    items: Mapping[str, Mapping[str, Any]]
    supervisor: ProcessRef

    def write(self, path: Path) -> None:
        """Save; raises TypeError if `shared` or an item is not JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> JobFile:
        """Load what `write` saved."""
        raw = json.loads(path.read_text())
        raw["supervisor"] = ProcessRef(**raw["supervisor"])
        return cls(**raw)
