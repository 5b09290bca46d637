"""Compile in child processes: a compiler that crashes or hangs costs only its own job.

Own code instead of pebble or loky: a deadline per job that shortens for the last ones, and the
reason of a death with the child's last words.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO

from fa_tune.build.worker import READY, Compilation, CompileJob, CompileReply
from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.core.signals import signal_name

START_TIMEOUT_S = 60.0
STRAGGLER_AFTER = 8  # compilations of which it is known how long they take
STRAGGLER_TIMES = 5.0
MIN_STRAGGLER_S = 8.0
IDLE_TIMES = 1.5  # the slowest so far, and at least
MIN_IDLE_S = 1.0
# -P: a `cuda.py` in the user's folder must not shadow the package.  Not -m: the classes in
# the messages would belong to `__main__`.
WORKER_COMMAND = (
    sys.executable,
    "-P",
    "-c",
    "import sys; from fa_tune.build.worker import main; sys.exit(main(sys.argv[1:]))",
)

# NVRTC may take code from the driver's cache, where another process has compiled the same, and
# then says nothing of registers and spills (github.com/NVIDIA/cuda-python/issues/1124).
_ENVIRONMENT = {"CUDA_CACHE_DISABLE": "1"}


def compile_all(
    jobs: Mapping[str, CompileJob],
    *,
    workers: int,
    command: Sequence[str] | None = None,
    on_idle: Callable[[], None] | None = None,
) -> Generator[tuple[str, CompileReply], None, None]:
    """Compile every job in up to `workers` processes; yields (job's name, reply) as they finish.

    Every job gets exactly one reply: a child that dies gives CRASHED, one over its job's
    `timeout_s` TIMED_OUT, and is replaced.  Raises ToolMissing when a child cannot start.
    Leaving the iteration early, by close() or by Ctrl-C, kills the children at once.

    When enough others are done and none is waiting, the rest gets a multiple of the time that the
    slowest of those took: everybody waits for it.  Before that, when it is clear that the rest will
    take its time, `on_idle` is called, once: what it does takes none that is not waited for
    anyway.  A reply that has come meanwhile counts, whatever the time.
    """
    waiting = deque(jobs)
    children: list[_Child] = []
    took_s: list[float] = []
    try:
        while (busy := sum(c.job != "" for c in children)) or waiting:
            wanted = min(max(workers, 1), busy + len(waiting))
            children += [_Child(command or WORKER_COMMAND) for _ in range(wanted - len(children))]
            if not waiting and len(took_s) >= STRAGGLER_AFTER:
                slowest_s = max(took_s)
                for child in children:
                    child.hurry(max(MIN_STRAGGLER_S, STRAGGLER_TIMES * slowest_s))
                idle_s = max(MIN_IDLE_S, IDLE_TIMES * slowest_s)
                if on_idle is not None and _all_busy_for(children, idle_s):
                    on_idle()
                    on_idle = None
            for child in _ready(children):
                finished, reply = child.job, child.receive()
                if reply is not None:
                    if reply[0].outcome in (Outcome.OK, Outcome.COMPILE_FAILED):
                        took_s.append(time.monotonic() - child.started)
                    yield finished, reply
                if not child.alive or not waiting:
                    children.remove(child)
                    child.end()
                else:
                    name = waiting.popleft()
                    child.give(name, jobs[name])
    finally:
        for child in children:
            child.end()


def _all_busy_for(children: Sequence[_Child], idle_s: float) -> bool:
    """Whether all that are left have been at it for so long, waiting until they have."""
    began = max(c.started for c in children)
    return not wait([c.connection for c in children], began + idle_s - time.monotonic())


def took_too_long(limit_s: float, allowed_s: float | None = None) -> str:
    """The reason of a compilation that was ended after `limit_s`; `allowed_s` is what it might
    have taken, had it not been the last."""
    text = f"the compiler took longer than {limit_s:.3g} s"
    if allowed_s is None or limit_s >= allowed_s:
        return text
    return f"{text}, many times as long as for the others, of {allowed_s:g} s allowed"


def ended_under(reason: str, allowed_s: float) -> bool:
    """Whether a reason is that of a compilation that was ended while `allowed_s` were allowed."""
    return reason == took_too_long(allowed_s) or reason.endswith(f", of {allowed_s:g} s allowed")


def _ready(children: Sequence[_Child]) -> list[_Child]:
    """Children that said something, died, or are over their deadline; waits for the first."""
    timeout_s = max(0.0, min(c.deadline for c in children) - time.monotonic())
    spoke = wait([c.connection for c in children], timeout_s)
    now = time.monotonic()
    return [c for c in children if c.connection in spoke or now >= c.deadline]


class _Child:
    """One worker process, its pipe, and the job it is at (`""`: none, still starting)."""

    def __init__(self, command: Sequence[str]) -> None:
        self.connection, theirs = Pipe()
        self.stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        package_root = str(Path(__file__).resolve().parents[2])
        search_path = [package_root, *filter(None, [os.environ.get("PYTHONPATH")])]
        try:
            self.process = subprocess.Popen(
                [*command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self.stderr,
                stderr=self.stderr,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(search_path)},
                start_new_session=True,  # Ctrl-C reaches the parent only, which ends us
            )
        except OSError as error:
            raise ToolMissing(f"cannot start a compiler process: {error}") from None
        finally:
            theirs.close()
        self.job = ""
        self.alive = True
        self.started = time.monotonic()
        self.deadline = self.started + START_TIMEOUT_S

    def give(self, name: str, job: CompileJob) -> None:
        """Hand over a job and start its clock."""
        self.job = name
        self.started = time.monotonic()
        self.deadline = self.started + job.timeout_s
        self._timeout_s = self._limit_s = job.timeout_s
        with contextlib.suppress(ConnectionError):  # it died meanwhile; receive() says how
            self.connection.send(job)

    def hurry(self, limit_s: float) -> None:
        """Give the job at work no more than `limit_s` in all."""
        if self.job and limit_s < self._limit_s:
            self._limit_s = limit_s
            self.deadline = self.started + limit_s

    def receive(self) -> CompileReply | None:
        """The reply to the job; None for the greeting.  Raises ToolMissing on a false start."""
        if not self.connection.poll():
            self.alive = False
            if not self.job:
                raise ToolMissing(f"a compiler process did not start in {START_TIMEOUT_S:g} s")
            reason = took_too_long(self._limit_s, self._timeout_s)
            return Compilation(Outcome.TIMED_OUT, reason), b""
        try:
            message = self.connection.recv()
        except (EOFError, ConnectionError):
            self.alive = False
            if not self.job:
                raise ToolMissing(f"a compiler process did not start: {self._death()}") from None
            death = self._death()
            if self.process.poll() == -signal.SIGALRM:  # its own clock was faster than ours
                return Compilation(Outcome.TIMED_OUT, took_too_long(self._timeout_s)), b""
            return Compilation(Outcome.CRASHED, f"the compiler {death}"), b""
        self.job = ""
        return None if message == READY else message

    def end(self) -> None:
        """Kill the process, whatever it is at; it holds nothing that could be lost."""
        self.alive = False
        self.process.kill()
        self.process.wait()
        self.connection.close()
        self.stderr.close()

    def _death(self) -> str:
        """How the process ended, and its last words."""
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return "closed its pipe"
        died = f"died with {signal_name(-status)}" if status < 0 else f"exited with {status}"
        self.stderr.seek(0)
        words = self.stderr.read().decode(errors="replace").strip().splitlines()
        return f"{died}: {words[-1].strip()}" if words else died
