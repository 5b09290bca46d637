"""The child process that runs one handler over many items: `python -m fa_tune.workers.main JOB`.

A handler is `handler(shared, items, report)`.  It tells `report` what it is about to do
*before* doing it, so that the supervisor (`fa_tune.workers.supervisor`) knows which item failed if
this process dies, and each result as soon as it is known:

    def time_all(shared: dict[str, Any], items: dict[str, Any], report: Report) -> None:
        for _ in range(shared["rounds"]):
            for name, spec in items.items():
                report.begin(name, timeout_s=5)
                report.partial(name, launch(spec))
        for name in items:
            report.done(name, …)

Each item's dict has, besides what the caller gave, `"_partials"`: the values already
reported for it by workers that died since, in order; empty the first time.  A handler that
goes in rounds continues from there.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from fa_tune.core.outcome import Outcome
from fa_tune.workers.protocol import (
    JOB,
    PROGRESS,
    STDERR,
    STDOUT,
    Event,
    EventKind,
    JobFile,
    ProcessRef,
    encode,
)

EXIT_RAISED = 1
EXIT_UNUSABLE = 2
EXIT_STICKY_ERROR = 3
EXIT_ORPHANED = 4
EXIT_NOT_FOUND = 127  # as shells have it

ORPHAN_CHECK_S = 0.25
_PR_SET_PDEATHSIG = 1


class Report:
    """The channel from a handler to the supervisor.  Safe to use from several threads.

    Every call is on its way to the supervisor when it returns, and restarts the clock of
    the item last begun.  Values must be JSON (NaN and infinities are fine); a value that
    is not raises TypeError before anything is sent, an unknown item ValueError.
    """

    def __init__(self, progress_path: Path, items: Collection[str]) -> None:
        self._descriptor = os.open(progress_path, os.O_WRONLY | os.O_APPEND)
        self._items = frozenset(items)
        self._lock = threading.Lock()

    def begin(self, item: str, timeout_s: float | None = None) -> None:
        """From here on whatever happens is attributed to `item`, until another one begins or it
        gets its final result; silence longer than `timeout_s` counts as a hang.  This and what
        follows raise ValueError for an item that the job does not have."""
        if timeout_s is not None and not timeout_s > 0:
            raise ValueError(f"timeout_s must be above 0, not {timeout_s}")
        self._send(Event(EventKind.BEGIN, self._known(item), timeout_s=timeout_s))

    def partial(self, item: str, value: Any) -> None:
        """A part of the item's result; kept by the supervisor if this process dies."""
        self._send(Event(EventKind.PARTIAL, self._known(item), value))

    def done(self, item: str, value: Any) -> None:
        """The item's final result."""
        self._send(Event(EventKind.DONE, self._known(item), value))

    def failed(self, item: str, outcome: Outcome | str, reason: str) -> None:
        """The item's final result is a failure; this process is fine."""
        outcome = Outcome(outcome)
        if outcome is Outcome.OK:
            raise ValueError("a failure needs another outcome than ok")
        self._send(Event(EventKind.FAILED, self._known(item), text=reason, outcome=outcome))

    def sticky_error(self, item: str, reason: str) -> NoReturn:
        """`item` caused a sticky CUDA error, which makes the context unusable.  It is recorded
        as crashed, and this process ends at once: no later result in it would mean anything."""
        self._send(Event(EventKind.STICKY_ERROR, self._known(item), text=reason))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(EXIT_STICKY_ERROR)  # no clean-up: it would use the broken context

    def _known(self, item: str) -> str:
        if item not in self._items:
            raise ValueError(f"not an item of this job: {item!r}")
        return item

    def _send(self, event: Event) -> None:
        record = memoryview(encode(event))
        with self._lock:
            while record:  # one write, unless the record is gigantic or the disk full
                record = record[os.write(self._descriptor, record) :]


def main(arguments: list[str]) -> int:
    """Run the job file named by the only argument; returns the exit status.

    `--prefork SUPERVISOR_PID [MODULE…]` imports the modules and waits until its stdin names a job
    (see `workers.prefork`); the id is 0 below a wrapper.  `--tied SUPERVISOR_PID PROGRAM
    [ARGUMENT…]` becomes PROGRAM, which then dies with the supervisor: a profiler cannot be asked
    to see to that itself.
    """
    if arguments[0] == "--tied":
        supervisor_pid, program = int(arguments[1]), arguments[2:]
        if not _die_with_parent(supervisor_pid):
            return EXIT_ORPHANED
        try:
            os.execvp(program[0], program)
        except OSError as error:
            print(f"cannot run {program[0]}: {error.strerror}", file=sys.stderr)
            return EXIT_NOT_FOUND

    if arguments[0] == "--prefork":
        return _wait_for_a_job(int(arguments[1]), arguments[2:])
    path = Path(arguments[0])
    job = JobFile.read(path)
    if not _die_with_parent(job.supervisor.pid):
        threading.Thread(target=_die_with, args=(job.supervisor,), daemon=True).start()
    faulthandler.enable()  # a segfault leaves the Python stack in the log
    _forbid_core_dumps()

    report = Report(path.with_name(PROGRESS), job.items)
    me = ProcessRef.me()
    report._send(Event(EventKind.STARTED, value={"pid": me.pid, "start_ticks": me.start_ticks}))
    try:
        handler = _resolve(job.handler)
    except BaseException as error:
        traceback.print_exc()
        report._send(
            Event(EventKind.UNUSABLE, text=f"cannot load {job.handler}: {_one_line(error)}")
        )
        return EXIT_UNUSABLE
    try:
        handler(dict(job.shared), dict(job.items), report)
    except BaseException as error:  # also SystemExit: a handler returns, it does not exit
        traceback.print_exc()
        report._send(Event(EventKind.RAISED, text=_one_line(error)))
        return EXIT_RAISED
    report._send(Event(EventKind.FINISHED))
    return 0


def _wait_for_a_job(supervisor_pid: int, modules: Sequence[str]) -> int:
    """Import modules, meanwhile prepare what stdin asks for, and run the job that it names then;
    without one, nothing."""
    if supervisor_pid and not _die_with_parent(supervisor_pid):
        return EXIT_ORPHANED
    found: list[Path] = []
    listener = threading.Thread(target=_listen, args=(found,), daemon=True)
    listener.start()
    gc.disable()  # of importing torch, a sixth is looking for garbage where there is none
    for module in modules:
        with contextlib.suppress(Exception):  # the job that needs it will say
            importlib.import_module(module)
    gc.freeze()
    gc.enable()
    listener.join()
    folder = found[0]
    for path, flags, descriptor in (
        (os.devnull, os.O_RDONLY, 0),
        (folder / STDOUT, os.O_WRONLY | os.O_APPEND, 1),
        (folder / STDERR, os.O_WRONLY | os.O_APPEND, 2),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    status = main([str(folder / JOB)])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # taking torch apart would take half a second, and gain nothing


def _listen(found: list[Path]) -> None:
    """Do what stdin asks for until it names the folder of a job, which is added to `found`; its
    end, which below a wrapper tells that the supervisor is gone, is that of the process."""
    while line := sys.stdin.buffer.readline():
        request = json.loads(line)
        os.environ.update(request["environment"])
        if "folder" in request:
            found.append(Path(request["folder"]))
            return
        with contextlib.suppress(Exception):  # the job will find it undone
            _resolve(request["prepare"])(request["device"])
    os._exit(0)


def _resolve(name: str) -> Callable[..., None]:
    module, _, function = name.partition(":")
    handler: Callable[..., None] = getattr(importlib.import_module(module), function)
    if not callable(handler):
        raise TypeError(f"{function} is not a function")
    return handler


def _one_line(error: BaseException) -> str:
    first, *_ = str(error).splitlines() or [""]
    return f"{type(error).__name__}: {first[:500]}" if first else type(error).__name__


def _die_with_parent(supervisor_pid: int) -> bool:
    """Have the kernel kill this process when the supervisor ends, however it ends.

    Works only for the supervisor's own child: False, and nothing done, for any other.
    The request survives exec.  See prctl(2), PR_SET_PDEATHSIG.
    """
    if os.getppid() != supervisor_pid:
        return False
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor_pid:  # it ended before the request was made
        os._exit(EXIT_ORPHANED)
    return True


def _die_with(supervisor: ProcessRef) -> None:
    """For a worker below a wrapper, which is not the supervisor's child: look regularly."""
    while supervisor.is_alive():
        time.sleep(ORPHAN_CHECK_S)
    os._exit(EXIT_ORPHANED)


def _forbid_core_dumps() -> None:
    """A crashing CUDA process can take a minute to dump.  The limit is 1 byte rather than 0
    because core(5) makes that one value stop dumps that are piped to a program, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard != 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
