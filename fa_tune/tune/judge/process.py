"""A process that answers requests of a judge, and may die, hang or say anything."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fa_tune.core import codec
from fa_tune.core.errors import FaTuneError, ToolMissing
from fa_tune.core.jobs import JudgeJob, KernelItem
from fa_tune.workers.child import Child
from fa_tune.workers.protocol import PROGRESS, EventKind, ProgressReader

T = TypeVar("T")
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 10.0
LOOK_S = 0.1
MOST_BYTES = 1 << 24  # of an answer


@dataclass(frozen=True)
class Limits:
    """Of a process: seconds for an answer, and bytes of data on a CPU."""

    timeout_s: float = 120.0
    memory_bytes: int = 8 << 30


class Ended(FaTuneError):
    """A process gave no answer; `kind` is a word for a refusal."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


@dataclass
class Process:
    """A child with the folder that it may write to.  `wall_s`: how long its last answer took, by
    the clock of this process."""

    folder: Path
    timeout_s: float
    _child: Child
    _socket: socket.socket
    _unread: bytes = b""
    wall_s: float = 0.0
    _number: int = field(default=0, repr=False)

    def new_folder(self) -> Path:
        """An empty folder for output files."""
        self._number += 1
        made = self.folder / f"out-{self._number}"
        made.mkdir()
        return made

    def ask(self, request: Any, kind: type[T]) -> T:
        """The answer, of a type of `core.judged`; raises Ended."""
        line = json.dumps(codec.dump(request)).encode() + b"\n"
        began = time.monotonic()
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(line)
            answer = self._line(began + self.timeout_s)
        except TimeoutError:
            raise Ended("hung", f"no answer within {self.timeout_s:g} s") from None
        except OSError:
            answer = b""
        self.wall_s = time.monotonic() - began
        if not answer:
            for _ in self._child.events():
                pass
            raise Ended("crashed", f"its process ended: {self._child.end().reason}")
        try:
            return codec.load(kind, codec.parse(answer))
        except ValueError as error:
            raise Ended(
                "forged", f"its process answered what no judge asked for: {error}"
            ) from None

    def _line(self, deadline: float) -> bytes:
        """A line, or nothing at the end; raises TimeoutError."""
        while b"\n" not in self._unread:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            piece = self._socket.recv(1 << 16)
            self._unread += piece
            if not piece or len(self._unread) > MOST_BYTES:
                return b""
        line, _, self._unread = self._unread.partition(b"\n")
        return line


@contextlib.contextmanager
def started(
    device: int, env: Mapping[str, str], limits: Limits, *, trusted: bool
) -> Iterator[Process]:
    """A process, gone at the end with all that it started; raises ToolMissing if it does not come
    up."""
    with tempfile.TemporaryDirectory(prefix="fa-tune-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(folder / "socket"))
            listener.listen(1)
            job = JudgeJob(
                items={"all": KernelItem("")},
                device=device,
                address=str(folder / "socket"),
                trusted=trusted,
                memory_bytes=limits.memory_bytes,
            )
            limit_s = END_TIMEOUT_S
            with Child(
                *job.request(),
                folder / "child",
                {"item_timeout_s": limit_s, "start_timeout_s": limit_s, "env": env},
            ) as child:
                connection = _accepted(listener, folder / "child" / PROGRESS)
                os.unlink(folder / "socket")
                with connection:
                    yield Process(folder, limits.timeout_s, child, connection)


def _accepted(listener: socket.socket, progress: Path) -> socket.socket:
    listener.settimeout(LOOK_S)
    reader, deadline = ProgressReader(progress), time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.suppress(TimeoutError):
            return listener.accept()[0]
        for event in reader.read():
            if event.kind in (EventKind.UNUSABLE, EventKind.RAISED):
                raise ToolMissing(f"a process to judge in cannot start: {event.text}")
        if time.monotonic() > deadline:
            raise ToolMissing(f"a process to judge in has not started in {START_TIMEOUT_S:g} s")
