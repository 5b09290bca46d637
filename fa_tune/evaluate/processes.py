"""Processes that share the runs of a comparison, and end when it does."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def mapped(
    function: Callable[[T], R],
    tasks: Sequence[T],
    *,
    jobs: int,
    chunk: int,
    begin: Callable[..., None] | None = None,
    common: tuple[Any, ...] = (),
) -> Generator[R, None, None]:
    """The results of `tasks` in their order, of `jobs` processes that each called `begin(*common)`.

    Who stops asking, Ctrl-C above all, ends the processes at once.
    """
    context = multiprocessing.get_context("spawn")  # libraries with threads do not survive a fork
    others = set(multiprocessing.active_children())
    pool = concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=context, initializer=begin, initargs=common
    )
    try:
        resource_tracker.ensure_running()  # else it unblocks SIGINT when the first process starts
        with _interrupts_later():  # what is blocked here stays so in the processes
            results = pool.map(function, tasks, chunksize=chunk)
        yield from results
    except BaseException:
        with _interrupts_later():
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        raise
    finally:
        with _interrupts_later():
            pool.shutdown(cancel_futures=True)


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """SIGINT waits until the block is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
