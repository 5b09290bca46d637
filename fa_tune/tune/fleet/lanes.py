"""A thread for each GPU of several, which lasts as long as the command does.

A worker that waits is tied to the thread that started it (`workers.prefork`), so that what is
started ahead for a GPU has to be started, given its job and ended by one and the same thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import TypeVar

from fa_tune.workers.child import worker_environment
from fa_tune.workers.prefork import PREFORK, Prefork

Result = TypeVar("Result")


class Lane:
    """The thread of one GPU, in which workers are processes that wait with `modules` imported."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._prefork = Prefork(modules, worker_environment({}))

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Have `work` done in the thread, after what it has to do already, in the caller's
        context."""
        return self._thread.submit(copy_context().run, self._within, work)

    def close(self) -> None:
        """End the thread, and what waits there."""
        self._thread.submit(self._prefork.end)
        self._thread.shutdown()

    def _within(self, work: Callable[[], Result]) -> Result:
        PREFORK.set(self._prefork)
        return work()


class Lanes:
    """The threads of all GPUs, by their labels; each begins when it is first asked for."""

    def __init__(self, modules: Sequence[str] = ()) -> None:
        self._modules = tuple(modules)
        self._lanes: dict[str, Lane] = {}

    def of(self, label: str) -> Lane:
        """The thread of a GPU."""
        if label not in self._lanes:
            self._lanes[label] = Lane(self._modules)
        return self._lanes[label]

    def close(self) -> None:
        """End all of them."""
        for lane in self._lanes.values():
            lane.close()


LANES: ContextVar[Lanes | None] = ContextVar("LANES", default=None)


@contextlib.contextmanager
def kept_lanes(modules: Sequence[str] = ()) -> Iterator[Lanes]:
    """Within it, the GPUs' threads stay, and the workers that wait there; `modules` are what these
    import."""
    if (outside := LANES.get()) is not None:
        yield outside
        return
    lanes = Lanes(modules)
    token = LANES.set(lanes)
    try:
        yield lanes
    finally:
        LANES.reset(token)
        lanes.close()
