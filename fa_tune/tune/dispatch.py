"""Workloads over GPUs: a workload is measured whole on one GPU.

Ratios are of one GPU's rounds, and times are never compared between GPUs.  A workload of which the
journal holds measurements goes back to the GPU that took them, if that is there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar

from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.operations import flops
from fa_tune.store.journal_records import AttemptRecord
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.session import Session, Tally
from fa_tune.workers.supervisor import ItemResult

AT_ONCE = 96  # variants; of what is interrupted while they are measured, a recording has none

Job = TypeVar("Job")
Item = TypeVar("Item")
Result = TypeVar("Result")
Request = tuple[str, Mapping[str, Any], Mapping[str, Mapping[str, Any]]]  # of a worker


def cost_of(workload: Workload, n_variants: int) -> float:
    """What measuring so many variants costs, to compare with that of others."""
    return flops.matmul_flop(workload) * n_variants


def run_on_gpus(
    session: Session,
    jobs: Sequence[Job],
    work: Callable[[Session, Job], Result],
    *,
    workload: Callable[[Job], Workload],
    cost: Callable[[Job], float],
) -> list[Result]:
    """`work` of every job on some GPU of the session's, the dearest first where there are several;
    results in the order of the jobs.  A job whose `workload` the journal knows goes to that one's
    GPU.  Raises what `work` raises, and GpusLost when no GPU is left."""
    tallies: list[Tally] = []

    def on_gpu(gpu: WorkerGpu, shown: Progress, job: Job) -> Result:
        own = session.on(gpu, shown)
        result = work(own, job)
        tallies.append(own.tally)
        return result

    last_gpus = cache(partial(_last_gpus, session))  # read where there are several to prefer

    def prefers(job: Job) -> str:
        return last_gpus().get(workload(job).key, "")

    found = session.pool.each(jobs, on_gpu, session.progress, prefers=prefers, cost=cost)
    for tally in tallies:
        session.tally.add(tally)
    return found


def run_items_on_gpus(
    session: Session,
    stage: str,
    items: Mapping[str, Item],
    job_of: Callable[[dict[str, Item], WorkerGpu], Request],
    keep: Callable[[ItemResult, WorkerGpu, Progress], None],
) -> None:
    """The worker's job of these items on each GPU of the session's, which share them; `keep` gets
    each result as it arrives.  Raises ToolMissing, and GpusLost when no GPU is left."""

    def on_gpu(gpu: WorkerGpu, shown: Progress, part: dict[str, Item]) -> None:
        """What has its result is removed from the part, so that another GPU can do the rest."""
        shown.stage(stage, len(part))
        limit_s = session.measure.item_timeout_s
        for result in gpu.run_items(*job_of(dict(part), gpu), item_timeout_s=limit_s):
            keep(result, gpu, shown)
            shown.advance(result.item)
            del part[result.item]

    session.pool.each(session.pool.deal(items), on_gpu, session.progress)


def run_some_on_gpus(
    session: Session,
    jobs: Sequence[Job],
    work: Callable[[Session, Sequence[Job]], Sequence[Result]],
    *,
    workload: Callable[[Job], Workload],
    size: Callable[[Job], int],
) -> list[Result]:
    """`run_on_gpus` for work that takes several jobs at once, where a process is dear and shared
    (`Capabilities.shares_process`): about AT_ONCE variants, of which a job has `size`.  Else one
    job after another."""
    parts = [[n] for n in range(len(jobs))]
    if session.capabilities.shares_process:
        n_gpus = max(1, len(session.pool.present))
        sizes = [size(job) for job in jobs]
        rounds = max(1, math.ceil(sum(sizes) / (AT_ONCE * n_gpus)))
        last = _last_gpus(session) if session.pool.has_several else {}
        wanted = [last.get(workload(job).key, "") for job in jobs]
        parts = dealt(sizes, wanted, rounds * n_gpus)
    found = run_on_gpus(
        session,
        parts,
        lambda own, part: work(own, [jobs[n] for n in part]),
        workload=lambda part: workload(jobs[part[0]]),
        cost=lambda part: sum(cost_of(workload(jobs[n]), size(jobs[n])) for n in part),
    )
    by_number = {
        n: result
        for part, results in zip(parts, found, strict=True)
        for n, result in zip(part, results, strict=True)
    }
    return [by_number[n] for n in range(len(jobs))]


def dealt(sizes: Sequence[int], wanted: Sequence[str], n_parts: int) -> list[list[int]]:
    """Numbers of jobs in at most `n_parts` parts of nearly the same size, none empty; jobs that
    want the same GPU (empty: any) stay together."""
    together: dict[str, list[int]] = {}
    for n, gpu in enumerate(wanted):
        together.setdefault(gpu or f"any {n}", []).append(n)
    units = sorted(together.values(), key=lambda unit: -sum(sizes[n] for n in unit))
    parts: list[list[int]] = [[] for _ in range(n_parts)]
    for unit in units:
        min(parts, key=lambda part: sum(sizes[n] for n in part)).extend(unit)
    return [sorted(part) for part in parts if part]


def _last_gpus(session: Session) -> dict[str, str]:
    """The GPU, by UUID, on which each workload was measured last by the session's method."""
    method, last = session.selection.method, dict[str, str]()
    for record in session.journal.records():
        if isinstance(record, AttemptRecord) and record.fingerprint.method == method:
            last[record.attempt.workload] = record.attempt.gpu_uuid
    return last
