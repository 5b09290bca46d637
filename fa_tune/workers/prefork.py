"""Workers that are started before there is work for them.

Most of a worker's start is importing torch: three to four seconds of one core, without a GPU or a
job.  Inside `preforked_workers` a process that has imported it waits for the next job, and another
is started as soon as that one is taken.  So a search that goes through several workers, or loses
one to a kernel that crashes, waits for the first only.  Every job still gets a process of its own,
in which no kernel has run before.  A worker below a profiler waits in the same way, below it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fa_tune.workers.protocol import STDERR, STDOUT

# -P: a file named like a library in the user's working directory must not win.
WORKER = (sys.executable, "-P", "-m", "fa_tune.workers.main")
CHILD_ENVIRONMENT = {
    "LC_ALL": "C",  # decimal points and messages as our parsers expect them
    # Loading all of torch's kernels at the start took a worker 6 s on an H200
    # (benchmarks/worker_start_h200.txt).  What is timed has been launched before.
    "CUDA_MODULE_LOADING": "LAZY",
    "PYTHONUNBUFFERED": "1",  # a crash loses no output
}
BELOW = "0"  # in place of the supervisor's id: the parent is the wrapper


def worker_environment(given: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: ours, `CHILD_ENVIRONMENT`, then what is given."""
    merged = {**os.environ, **CHILD_ENVIRONMENT, **given}
    # Run from a source tree, the package may be on our own path only.
    root = str(Path(__file__).resolve().parents[2])
    if root not in sysconfig.get_paths().values():
        merged["PYTHONPATH"] = os.pathsep.join(filter(None, [root, merged.get("PYTHONPATH")]))
    return merged


class Prefork:
    """One waiting worker at a time, and another as soon as that one has a job, unless `only_one` is
    expected.  A child is tied to the thread that started it, so that one thread has to start, give
    and end all of them."""

    def __init__(self, modules: Sequence[str], *, only_one: bool = False) -> None:
        self._modules = tuple(modules)
        self._only_one = only_one
        self._waiting: subprocess.Popen[bytes] | None = None
        self._at_end: list[Callable[[], None]] = []

    def at_end(self, action: Callable[[], None]) -> None:
        """Have `action` called by `end`."""
        self._at_end.append(action)

    def start(self) -> None:
        """See that a worker is waiting, or on its way."""
        if self._waiting is not None and self._waiting.poll() is None:
            return
        self._waiting = subprocess.Popen(
            [*WORKER, "--prefork", str(os.getpid()), *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=worker_environment({}),
            start_new_session=True,
        )

    def give(self, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Hand the job in a folder to the waiting worker, which writes to the files there from then
        on; None if there is none that could take it.  `environment` is set before the job begins:
        it may say which GPU is seen, but nothing that is read when a process starts."""
        process, self._waiting = self._waiting, None
        if not self._only_one:
            self.start()
        if process is None:
            return None
        return _hand_over(process, folder, environment)

    def prepare(self, function: str, environment: Mapping[str, str], device: int) -> None:
        """As `WaitingBelow.prepare`, if one is waiting."""
        if self._waiting is not None:
            _prepare(self._waiting, function, environment, device)

    def end(self) -> None:
        if self._waiting is not None:
            _end(self._waiting)
            self._waiting = None
        while self._at_end:
            self._at_end.pop()()


class WaitingBelow:
    """One worker that waits below a wrapper, in a `folder` of its own, where its job will run.

    `wrapper` gives the wrapper's command line for a folder.  Who takes the job's result removes
    the folder.  Starts it; raises OSError.
    """

    def __init__(
        self,
        wrapper: Callable[[Path], Sequence[str]],
        modules: Sequence[str],
        environment: Callable[[Path], Mapping[str, str]],
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="fa-tune-"))
        self.wrapper = tuple(wrapper(self.folder))
        below = [*WORKER, "--prefork", BELOW, *modules]
        with (
            (self.folder / STDOUT).open("ab") as stdout,
            (self.folder / STDERR).open("ab") as stderr,
        ):
            self._process = subprocess.Popen(
                [*WORKER, "--tied", str(os.getpid()), *self.wrapper, *below],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                env=worker_environment(environment(self.folder)),
                start_new_session=True,
            )

    def give(self, folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        return _hand_over(self._process, folder, environment)

    def prepare(self, function: str, environment: Mapping[str, str], device: int) -> None:
        """Have it call `module:function` with a GPU's number, beside importing its modules and
        with this added to its environment.  Whatever becomes of that, it goes on waiting."""
        _prepare(self._process, function, environment, device)

    def end(self) -> None:
        """End it, and what is below it."""
        _end(self._process)
        shutil.rmtree(self.folder, ignore_errors=True)


PREFORK: ContextVar[Prefork | None] = ContextVar("PREFORK", default=None)


@contextlib.contextmanager
def preforked_workers(modules: Sequence[str], *, only_one: bool = False) -> Iterator[None]:
    """Within it, workers of this thread are processes that wait with `modules` imported.  The
    first one is started by the first job, or by `warm_up`; with `only_one` no other follows."""
    if PREFORK.get() is not None:  # those outside serve as well
        yield
        return
    prefork = Prefork(modules, only_one=only_one)
    token = PREFORK.set(prefork)
    try:
        yield
    finally:
        PREFORK.reset(token)
        prefork.end()


def warm_up() -> None:
    """A job will come soon: start a worker for it, inside `preforked_workers`."""
    prefork = PREFORK.get()
    if prefork is not None:
        prefork.start()


def get_ready(function: str, environment: Mapping[str, str], device: int) -> None:
    """`warm_up`, and have the worker call `function` as `WaitingBelow.prepare` says."""
    prefork = PREFORK.get()
    if prefork is not None:
        prefork.start()
        prefork.prepare(function, environment, device)


def _hand_over(
    process: subprocess.Popen[bytes], folder: Path, environment: Mapping[str, str]
) -> subprocess.Popen[bytes] | None:
    """The process, which has its job now; None if it died: a fresh one will say of what."""
    try:
        _send(process, {"folder": str(folder), "environment": dict(environment)})
        assert process.stdin is not None
        process.stdin.close()
    except OSError:
        _end(process)
        return None
    return process


def _prepare(
    process: subprocess.Popen[bytes], function: str, environment: Mapping[str, str], device: int
) -> None:
    message = {"prepare": function, "environment": dict(environment), "device": device}
    with contextlib.suppress(OSError):  # who gives it a job will see that it is gone
        _send(process, message)


def _send(process: subprocess.Popen[bytes], message: Mapping[str, Any]) -> None:
    """One line to its stdin; raises OSError."""
    assert process.stdin is not None
    if process.poll() is not None:
        raise BrokenPipeError
    process.stdin.write(json.dumps(message).encode() + b"\n")
    process.stdin.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # not reaped, so that its group is its own
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.wait()
