"""Processes that share the runs of a comparison, and end when it does."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import queue
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
            futures = [
                pool.submit(_results, function, tasks[first : first + chunk])
                for first in range(0, len(tasks), chunk)
            ]
        for results in _in_order(futures):
            yield from results
    except BaseException:
        with _interrupts_later():
            for process in set(multiprocessing.active_children()) - others:
                process.kill()
        raise
    finally:
        with _interrupts_later():
            pool.shutdown(cancel_futures=True)


def _results(function: Callable[[T], R], tasks: Sequence[T]) -> list[R]:
    return [function(task) for task in tasks]


def _in_order(futures: Sequence[concurrent.futures.Future[R]]) -> Iterator[R]:
    """Their results.

    An interrupt ends the wait for an item of a SimpleQueue as it ends a sleep; in a wait for a
    future it can leave a lock that is then released twice.
    """
    done: queue.SimpleQueue[concurrent.futures.Future[R]] = queue.SimpleQueue()
    for future in futures:
        future.add_done_callback(done.put)
    arrived = set()
    for future in futures:
        while future not in arrived:
            arrived.add(done.get())
        yield future.result()


@contextmanager
def _interrupts_later() -> Iterator[None]:
    """SIGINT waits until the block is left."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
