"""The next ncu processes, started before there is work for them.

Below ncu a worker has to import torch as well, for several seconds in which nothing is measured.
Inside `preforked_workers` it does so while kernels compile, or while others measure.  As the
latter may be done in a second, several wait where there are cores for them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from fa_tune.core.jobs import ProfileJob
from fa_tune.workers.child import worker_environment
from fa_tune.workers.prefork import PREFORK, WaitingBelow

MOST = 3  # that wait
CORES = 4  # for each of them
MODULES = (ProfileJob.handler.partition(":")[0],)


def environment_in(folder: Path) -> dict[str, str]:
    """ncu's lock file is our own then, whatever is left in /tmp."""
    return {"TMPDIR": str(folder)}


class Ahead:
    """Processes that wait, those that have waited longest first; `command` is ncu's for a
    folder."""

    def __init__(self, command: Callable[[Path], Sequence[str]]) -> None:
        self._command = command
        self._waiting: list[WaitingBelow] = []

    def start(self) -> None:
        """See that processes are waiting; nothing outside `preforked_workers`."""
        prefork = PREFORK.get()
        if prefork is None:
            return
        most = max(1, min(MOST, len(os.sched_getaffinity(0)) // CORES))
        with contextlib.suppress(OSError):  # one that is started for its job will say
            while len(self._waiting) < most:
                self._waiting.append(
                    WaitingBelow(
                        self._command,
                        MODULES,
                        lambda folder: worker_environment(environment_in(folder)),
                    )
                )
                prefork.at_end(self._end)

    @contextlib.contextmanager
    def place(self) -> Iterator[tuple[Path, WaitingBelow | None]]:
        """A folder for one process, and the process if one waits there."""
        waiting = self._waiting.pop(0) if self._waiting else None
        if waiting is not None and waiting.wrapper != tuple(self._command(waiting.folder)):
            waiting.end()  # other metrics are asked for by now
            waiting = None
        if waiting is None:
            with tempfile.TemporaryDirectory(prefix="fa-tune-ncu-") as folder:
                yield Path(folder), None
            return
        try:
            yield waiting.folder, waiting
        finally:
            shutil.rmtree(waiting.folder, ignore_errors=True)

    def _end(self) -> None:
        while self._waiting:
            self._waiting.pop().end()
