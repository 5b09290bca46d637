"""Workloads over GPUs: what is measured together stays on one GPU.

A workload's rounds are one GPU's, because ratios are believed within a round and times are not
moved from GPU to GPU as they are.  A workload of which the journal holds measurements goes back to
the GPU that took them, if that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.store.journal import AttemptRecord
from fa_tune.tune.fleet.cross_gpu import gpu_of
from fa_tune.tune.fleet.gpu import Gpu
from fa_tune.tune.session import Session, Tally

Job = TypeVar("Job")
Result = TypeVar("Result")


def run_on_gpus(
    session: Session,
    jobs: Sequence[Job],
    work: Callable[[Session, Job], Result],
    *,
    cost: Callable[[Job], float],
    workload: Callable[[Job], Workload] | None = None,
) -> list[Result]:
    """`work` of every job on some GPU of the session's, the dearest first where there are several;
    results in the order of the jobs.  A job whose `workload` the journal knows goes to that one's
    GPU, if a job is a workload at all.  Raises what `work` raises, and GpusLost when no GPU is
    left."""
    tallies: list[Tally] = []

    def on_gpu(gpu: Gpu, shown: Progress, job: Job) -> Result:
        own = session.on(gpu, shown)
        result = work(own, job)
        tallies.append(own.tally)
        return result

    @cache
    def affinity() -> dict[str, str]:
        return _last_gpus(session)

    def prefers(job: Job) -> str:
        return affinity().get(workload(job).key, "") if workload is not None else ""

    found = session.pool.each(jobs, on_gpu, session.progress, prefers=prefers, cost=cost)
    for tally in tallies:
        session.tally.add(tally)
    return found


def _last_gpus(session: Session) -> dict[str, str]:
    """The GPU, by UUID, on which each workload was measured last by the session's method."""
    method, last = session.selection.method, dict[str, str]()
    for record in session.journal.records():
        if isinstance(record, AttemptRecord) and record.fingerprint.method == method:
            last[record.attempt.workload] = gpu_of(record.attempt)
    return last
