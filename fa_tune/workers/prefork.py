"""Workers that are started before there is work for them.

Most of a worker's start is importing torch: three to four seconds of one core, without a GPU or a
job.  Inside `preforked_workers` a process that has imported it waits for the next job, and another
is started as soon as that one is taken.  So a search that goes through several workers, or loses
one to a kernel that crashes, waits for the first only.  Every job still gets a process of its own,
in which no kernel has run before.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path


class Prefork:
    """One waiting worker at a time.  A child is tied to the thread that started it, so that one
    thread has to start, give and end all of them."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        self._modules = tuple(modules)
        self._environment = dict(environment)
        self._waiting: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """See that a worker is waiting, or on its way."""
        if self._waiting is not None and self._waiting.poll() is None:
            return
        # -P: a file named like a library in the user's working directory must not win.
        command = [sys.executable, "-P", "-m", "fa_tune.workers.main"]
        self._waiting = subprocess.Popen(
            [*command, "--prefork", str(os.getpid()), *self._modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment,
            start_new_session=True,
        )

    def give(
        self, job_path: Path, environment: Mapping[str, str], stdout_path: Path, stderr_path: Path
    ) -> subprocess.Popen[bytes] | None:
        """Hand a job to the waiting worker, which writes to these files from then on; None if
        there is none that could take it.  `environment` is set before the job begins: it may
        say which GPU is seen, but nothing that is read when a process starts."""
        process, self._waiting = self._waiting, None
        self.start()
        if process is None:
            return None
        message = {
            "job": str(job_path),
            "environment": dict(environment),
            "stdout": str(stdout_path),
            "stderr": str(stderr_path),
        }
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.close()
        except OSError:  # it died; a fresh one will say of what
            _end(process)
            return None
        return process

    def end(self) -> None:
        """End the one that waits."""
        if self._waiting is not None:
            _end(self._waiting)
            self._waiting = None


PREFORK: ContextVar[Prefork | None] = ContextVar("PREFORK", default=None)


@contextlib.contextmanager
def preforked_workers(modules: Sequence[str], environment: Mapping[str, str]) -> Iterator[None]:
    """Within it, workers of this thread are processes that wait with `modules` imported.  The
    first one is started by the first job, or by `warm_up`."""
    if PREFORK.get() is not None:  # those outside serve as well
        yield
        return
    prefork = Prefork(modules, environment)
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


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    process.wait()
