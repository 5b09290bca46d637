"""Workers that are copies of one process, which has imported torch and done nothing else: an import
takes longer than most judgements.

As a script it is that process.  For each line of stdin, the request of `Prefork.give`, it starts a
copy, which becomes the child of the process that asked and answers with its id.  The trusted one
remembers what must come out: one seed draws the same cases for every target.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from fa_tune.workers.child import worker_environment
from fa_tune.workers.main import main
from fa_tune.workers.prefork import PREFORK, Prefork
from fa_tune.workers.protocol import JOB, STDERR, STDOUT

REMEMBERING = {"FA_TUNE_TEST_REMEMBERING": "1"}  # in the environment of a trusted process
_PR_SET_CHILD_SUBREAPER = 36  # prctl(2): children of children that ended become its own


class Copy(subprocess.Popen[bytes]):
    """A child that another process started."""

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode, self._child_created = pid, None, False

    def wait(self, timeout: float | None = None) -> int:
        """Reap it; the exit status."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return int(self.returncode)


class Copies(Prefork):
    """Gives each job to a copy."""

    def __init__(self) -> None:
        super().__init__(())
        self._original = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_environment({"OMP_NUM_THREADS": "1"}),
        )

    def give(self, folder: Path, environment: Mapping[str, str]) -> Copy:
        """See `Prefork.give`."""
        request = str(folder), dict(environment)
        assert self._original.stdin is not None
        assert self._original.stdout is not None
        with _adopting():
            self._original.stdin.write(json.dumps(request).encode() + b"\n")
            self._original.stdin.flush()
            return Copy(int(self._original.stdout.readline()))

    def end(self) -> None:
        """End the original; copies have ended."""
        self._original.kill()
        self._original.communicate()


@contextmanager
def _adopting() -> Iterator[None]:
    """Within it, processes whose parent ended become this one's: no longer, since nobody here
    waits for those that a target leaves behind."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@contextmanager
def copied_workers() -> Iterator[None]:
    """Within it, workers of this thread are copies."""
    copies = Copies()
    token = PREFORK.set(copies)
    try:
        yield
    finally:
        PREFORK.reset(token)
        copies.end()


def _serve() -> None:
    import torch._inductor.config  # noqa: F401 - torch's profiler does, as it begins

    from fa_tune.gpu.jobs import judge  # what copies share

    supervisor = os.getppid()
    for line in sys.stdin.buffer:
        between = os.fork()
        if between:
            os.waitpid(between, 0)
        elif os.fork():
            os._exit(0)
        else:
            folder, environment = json.loads(line)
            if REMEMBERING.items() <= environment.items():
                _remember_answers(judge)
            _work(supervisor, folder, environment)


def _remember_answers(judge: ModuleType) -> None:
    """Inputs are drawn, and what must come out of them is computed, once for each case and its
    contents."""
    side_of, judge.drawn = judge.torch_side_of, cache(judge.drawn)  # type: ignore[attr-defined]

    @cache
    def remembering(workload: Any) -> SimpleNamespace:
        side, known = side_of(workload), dict[Any, Any]()

        def expected(workload: Any, inputs: Any, *, precise: Any) -> Any:
            key = id(inputs), precise  # `drawn` keeps them, so no others have their id
            if key not in known:
                known[key] = side.expected(workload, inputs, precise=precise)
            return known[key]

        return SimpleNamespace(expected=expected)

    judge.torch_side_of = remembering  # type: ignore[attr-defined]


def _work(supervisor: int, folder: str, environment: Mapping[str, str]) -> None:
    os.setsid()
    while os.getppid() != supervisor:
        time.sleep(0.001)
    os.write(1, b"%d\n" % os.getpid())
    for path, flags, descriptor in (
        (os.devnull, os.O_RDONLY, 0),
        (f"{folder}/{STDOUT}", os.O_WRONLY | os.O_APPEND, 1),
        (f"{folder}/{STDERR}", os.O_WRONLY | os.O_APPEND, 2),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.update(environment)
    status = main([f"{folder}/{JOB}"])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _serve()
