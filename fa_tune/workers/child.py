"""One worker process, watched: what `fa_tune.workers.supervisor` does once or many times.

The rules for attribution and deadlines are stated there.  Linux only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Required, Self, TypedDict

from fa_tune.core.errors import ToolMissing
from fa_tune.core.outcome import Outcome
from fa_tune.core.signals import signal_name
from fa_tune.workers.prefork import (
    CHILD_ENVIRONMENT,
    PREFORK,
    WORKER,
    WaitingBelow,
    worker_environment,
)
from fa_tune.workers.protocol import (
    JOB,
    PROGRESS,
    STDERR,
    STDOUT,
    Event,
    EventKind,
    JobFile,
    ProcessRef,
    ProgressReader,
)

POLL_S = 0.02
TERM_GRACE_S = 2.0  # from SIGTERM to SIGKILL
KILL_WAIT_S = 30.0  # a process inside the GPU driver may take its time to die
TAIL_BYTES = 8192
START_TIMEOUT_S = 120.0
EXIT_TIMEOUT_S = 60.0


class CalledOff(BaseException):
    """The thread's work is no longer wanted; like KeyboardInterrupt, no error."""


# Set by whoever runs jobs in several threads, of which Ctrl-C reaches only the main one: once
# the event is set, children of this thread are ended and their readers get CalledOff.
CALLED_OFF: ContextVar[threading.Event | None] = ContextVar("CALLED_OFF", default=None)


@dataclass(frozen=True)
class ItemResult:
    """The end of one item.

    `value` is what the handler gave to `done` (outcome OK); failures reported by the
    handler have its outcome and reason.  CRASHED and TIMED_OUT come from supervision.
    """

    item: str
    outcome: Outcome
    value: Any | None
    reason: str = ""


@dataclass(frozen=True)
class ChildEnd:
    """The end of one worker (or, with a wrapper, of the wrapper).

    Exactly one of `exit_code` and `signal` (as in "SIGSEGV") is set.  `finished` says that
    the handler returned; `timed_out` that its time was up and we ended it; `reason` puts it
    in words.  `failed_item` is the item to which that is attributed, if any.  `results` are the
    final results, that item's included; `events` all records of this worker, in order.
    """

    exit_code: int | None
    signal: str | None
    timed_out: bool
    finished: bool
    reason: str
    failed_item: str | None
    results: Mapping[str, ItemResult]
    events: tuple[Event, ...]

    @property
    def was_killed(self) -> bool:
        """Whether somebody else sent SIGKILL, to the worker or to its wrapper: a person, or the
        system short of memory."""
        killed = self.signal == "SIGKILL" or self.exit_code == 128 + signal.SIGKILL
        return killed and not self.timed_out


class ChildOptions(TypedDict, total=False):
    """Settings of a child: its time limits in seconds (see `fa_tune.workers.supervisor`), and

    - `waiting`: a worker below that wrapper that may take the job;
    - `wrapper`: put before its command, as in ["ncu", "--log-file", "ncu.csv"];
    - `env`: added to its environment;
    - `on_event`: called with every record.
    """

    item_timeout_s: Required[float]
    start_timeout_s: float  # START_TIMEOUT_S
    exit_timeout_s: float  # EXIT_TIMEOUT_S
    wrapper: Sequence[str]
    waiting: WaitingBelow | None
    env: Mapping[str, str] | None
    on_event: Callable[[Event], None] | None


class Child:
    """One worker process, below its wrapper if there is one.

    As a context manager: started on entry; on exit, gone with its whole process group.
    """

    def __init__(
        self,
        handler: str,
        shared: Mapping[str, Any],
        items: Mapping[str, Any],
        folder: Path,
        options: ChildOptions,
    ) -> None:
        self.results: dict[str, ItemResult] = {}
        self._job = JobFile(handler, shared, items, ProcessRef.me())
        self._folder = folder.absolute()
        self._options = options
        self._wrapper = tuple(options.get("wrapper", ()))
        self._progress = ProgressReader(self._folder / PROGRESS)
        self._events: list[Event] = []
        self._worker: ProcessRef | None = None
        self._open: str | None = None  # the item last begun, if it has no final result
        self._open_timeout_s = 0.0
        self._last_words = ""  # why the worker left, in its own words
        self._finished = False
        self._timed_out = False

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._job.write(self._folder / JOB)
        (self._folder / PROGRESS).write_bytes(b"")
        self._restart_clock()
        env = self._options.get("env") or {}
        with (self._folder / STDOUT).open("wb") as out, (self._folder / STDERR).open("wb") as err:
            waiting = self._options.get("waiting") if self._wrapper else PREFORK.get()
            if waiting is not None:
                taken = waiting.give(self._folder, {**CHILD_ENVIRONMENT, **env})
                if taken is not None:
                    self._process = taken
                    return self
            self._process = subprocess.Popen(
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=worker_environment(env),
                start_new_session=True,  # its own group; and a terminal's Ctrl-C is ours alone
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def _command(self) -> list[str]:
        """The command line; raises ToolMissing if the wrapper is not installed."""
        worker = [*WORKER, str(self._folder / JOB)]
        if not self._wrapper:
            return worker
        if shutil.which(self._wrapper[0]) is None:
            raise ToolMissing(f"{self._wrapper[0]} not found on PATH; install it or do without")
        return [*WORKER, "--tied", str(os.getpid()), *self._wrapper, *worker]

    def events(self) -> Iterator[Event]:
        """Every record as it arrives, until the process has ended or its time is up.

        `results` is up to date with the event last yielded; the failed item joins at the end.
        """
        suspect: str | None = None
        called_off = CALLED_OFF.get()
        while True:
            if called_off is not None and called_off.is_set():
                raise CalledOff
            ended = self._has_ended()  # asked before reading: then nothing more can come
            news = self._progress.read()
            for event in news:
                yield self._take_in(event)
            if ended:
                break
            if news:
                continue  # the consumer may have taken long: look again before judging
            if time.monotonic() > self._deadline:
                self._timed_out, suspect = True, self._open
                break
            time.sleep(POLL_S)
        self._stop()
        for event in self._progress.read():  # written while it was being stopped
            yield self._take_in(event)
        if self._finished or (self._timed_out and self._open != suspect):
            self._open = None  # not its failure: the handler forgot it, or had only just begun it
        if self._open is not None:
            hung = self._timed_out and not self._last_words
            outcome = Outcome.TIMED_OUT if hung else Outcome.CRASHED
            self.results[self._open] = ItemResult(self._open, outcome, None, self._reason())

    def end(self) -> ChildEnd:
        """Its end; to be read after `events` is through."""
        status = self._process.returncode
        return ChildEnd(
            exit_code=status if status >= 0 else None,
            signal=signal_name(-status) if status < 0 else None,
            timed_out=self._timed_out,
            finished=self._finished,
            reason=self._reason(),
            failed_item=self._open,
            results=self.results,
            events=tuple(self._events),
        )

    def _take_in(self, event: Event) -> Event:
        """Note an event, and tell `on_event`."""
        self._events.append(event)
        item, known = event.item, event.item in self.results
        match event.kind:
            case EventKind.STARTED:
                self._worker = ProcessRef(**event.value)
            case EventKind.BEGIN:
                self._open = item
                self._open_timeout_s = event.timeout_s or self._options["item_timeout_s"]
            case EventKind.DONE if not known:
                self.results[item] = ItemResult(item, Outcome.OK, event.value)
            case EventKind.FAILED if not known and event.outcome is not None:
                self.results[item] = ItemResult(item, event.outcome, None, event.text)
            case EventKind.STICKY_ERROR:
                self._last_words = event.text
                crashed = ItemResult(item, Outcome.CRASHED, None, event.text)
                self.results.setdefault(item, crashed)
            case EventKind.RAISED | EventKind.UNUSABLE:
                self._last_words = event.text
            case EventKind.FINISHED:
                self._finished = True
        if self._open in self.results:
            self._open = None
        self._restart_clock()
        if (on_event := self._options.get("on_event")) is not None:
            on_event(event)
        return event

    def _restart_clock(self) -> None:
        if self._finished or self._last_words:
            self._allowed_s = self._options.get("exit_timeout_s", EXIT_TIMEOUT_S)
        elif self._open is not None:
            self._allowed_s = self._open_timeout_s
        else:
            self._allowed_s = self._options.get("start_timeout_s", START_TIMEOUT_S)
        self._deadline = time.monotonic() + self._allowed_s

    def _reason(self) -> str:
        if self._last_words:
            return self._last_words
        if self._timed_out:
            return f"silent for {self._allowed_s:g} s"
        if self._finished:
            return "finished"
        status = self._process.returncode
        if status < 0:
            hint = " (out of memory?)" if status == -signal.SIGKILL else ""
            return f"killed by {signal_name(-status)}{hint}"
        # A wrapper passes on the death of its program in the way of shells.
        name = f" ({signal_name(status - 128)})" if self._wrapper and status > 128 else ""
        lines = self._stderr_tail().split("\n")
        last = next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
        said = f"; stderr ends: {last}" if last else ""
        return f"exited with status {status}{name} before it was done{said}"

    def _stderr_tail(self) -> str:
        """The last lines of stderr, at most TAIL_BYTES, however much was written."""
        with (self._folder / STDERR).open("rb") as log:
            start = max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES)
            log.seek(start)
            text = log.read(TAIL_BYTES).decode("utf-8", "replace")
        whole_lines = text.partition("\n")[2]
        return whole_lines if start and whole_lines else text

    def _has_ended(self) -> bool:
        # Seen but not reaped: as long as its zombie exists, no other process can get its
        # id, and _stop may signal the group without hitting strangers.
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, options) is not None
        except ChildProcessError:  # already reaped
            return True

    def _stop(self) -> None:
        """End whatever still runs; what ended by itself keeps its exit status."""
        if self._process.returncode is not None:
            return
        try:
            if not self._has_ended():
                self._signal_group(signal.SIGTERM)
                patience = time.monotonic() + TERM_GRACE_S
                while not self._has_ended() and time.monotonic() < patience:
                    time.sleep(POLL_S)
        finally:  # also when a second Ctrl-C cuts the grace short
            self._signal_group(signal.SIGKILL)
            if self._worker is not None and self._worker.is_alive():  # the wrapper moved it
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._worker.pid, signal.SIGKILL)
            try:
                self._process.wait(KILL_WAIT_S)
            except subprocess.TimeoutExpired:
                message = f"process {self._process.pid} survives SIGKILL; the GPU may be hung"
                raise ToolMissing(f"{message}, see nvidia-smi") from None

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
