"""The next ncu process, started before there is work for it.

Below ncu a worker has to import torch as well, for several seconds in which nothing is measured.
Inside `preforked_workers` it does so while kernels compile, or while others measure.  And as long
as nothing is measured, it may make the GPU's context as well, and have ncu do what it does at the
first launch, which takes it a second.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from fa_tune.core.jobs import BEGIN_PROFILING, ProfileJob
from fa_tune.workers.prefork import PREFORK, WaitingBelow

MODULES = (ProfileJob.handler.partition(":")[0],)
PREPARE = BEGIN_PROFILING


def environment_in(folder: Path) -> dict[str, str]:
    """ncu's lock file is our own then, whatever is left in /tmp."""
    return {"TMPDIR": str(folder)}


class Ahead:
    """The process that waits, if there is one; `command` is ncu's for a folder."""

    def __init__(self, command: Callable[[Path], Sequence[str]]) -> None:
        self._command = command
        self._waiting: WaitingBelow | None = None

    @property
    def is_waiting(self) -> bool:
        return self._waiting is not None

    def start(self) -> None:
        """See that a process is waiting; nothing outside `preforked_workers`."""
        prefork = PREFORK.get()
        if prefork is None or self._waiting is not None:
            return
        with contextlib.suppress(OSError):  # one that is started for its job will say
            self._waiting = WaitingBelow(self._command, MODULES, environment_in)
            prefork.at_end(self._end)

    def prepare(self, environment: Mapping[str, str], device: int) -> None:
        """Have the process that waits get ready on a GPU."""
        if self._waiting is not None:
            self._waiting.prepare(PREPARE, environment, device)

    @contextlib.contextmanager
    def place(self) -> Iterator[tuple[Path, WaitingBelow | None]]:
        """A folder for one process, and the process if one waits there."""
        waiting, self._waiting = self._waiting, None
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
        if self._waiting is not None:
            self._waiting.end()
            self._waiting = None
