"""Workloads over boards: what is measured together stays on one board.

A workload's rounds are one board's, because ratios are believed within a round and times are not
carried from board to board.  A workload of which the journal holds measurements goes back to the
board that took them, if that is there.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fa_tune.core.model import Workload
from fa_tune.core.options import Progress
from fa_tune.fleet.cross_gpu import board_of
from fa_tune.fleet.gpu import Board
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.store.journal import AttemptRecord, Journal
from fa_tune.tune.measure import Tally
from fa_tune.tune.profilers import Measured
from fa_tune.tune.session import Context

Job = TypeVar("Job")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Spot:
    """Where a job is done: this command's only GPU, or one of several."""

    measured: Measured
    context: Context
    progress: Progress
    tally: Tally


def on_boards(
    jobs: Sequence[Job],
    work: Callable[[Spot, Job], Result],
    here: Spot,
    journal: Journal,
    workload: Callable[[Job], Workload] | None,
    cost: Callable[[Job], float],
) -> list[Result]:
    """`work` of every job, the dearest first where there are several boards; results in the
    order of the jobs.  A job whose `workload` the journal knows goes to that one's board, if a
    job is a workload at all (None: it is not).  Raises what `work` raises, BoardsLost when no
    board is left."""
    pool = here.context.pool
    if pool is None or isinstance(here.measured.profiler, ReplayProfiler):
        return [work(here, job) for job in jobs]
    order = sorted(range(len(jobs)), key=lambda n: -cost(jobs[n]))
    homes = _homes(journal, here.measured.profiler.method)
    tallies: list[Tally] = []

    def on_board(board: Board, shown: Progress, n: int) -> Result:
        context = _with_its_share(here.context.on(board), len(pool.present))
        spot = Spot(here.measured.on(board), context, shown, Tally())
        result = work(spot, jobs[n])
        tallies.append(spot.tally)
        return result

    def home(n: int) -> str:
        return homes.get(workload(jobs[n]).key, "") if workload is not None else ""

    found = pool.each(order, on_board, here.progress, prefers=home)
    for tally in tallies:
        here.tally.measured += tally.measured
        here.tally.reused += tally.reused
    by_number = dict(zip(order, found, strict=True))
    return [by_number[n] for n in range(len(jobs))]


def _with_its_share(context: Context, boards: int) -> Context:
    """Compiling for one job among several takes its share of the cores."""
    jobs = context.options.jobs or len(os.sched_getaffinity(0))
    options = dataclasses.replace(context.options, jobs=max(1, jobs // boards))
    return dataclasses.replace(context, options=options)


def _homes(journal: Journal, method: str) -> dict[str, str]:
    """The board, by UUID, on which each workload was measured last by a method."""
    homes: dict[str, str] = {}
    for record in journal.records():
        if isinstance(record, AttemptRecord) and record.fingerprint.method == method:
            homes[record.attempt.workload] = board_of(record.attempt)
    return homes
