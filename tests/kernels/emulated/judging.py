"""Judges an emulated kernel: its results against fp64, and that no schedule changes a bit of them
or makes it wait for ever.  Each kernel is launched in a process of its own, which it may bring
down."""

from __future__ import annotations

import dataclasses
import itertools
import multiprocessing
import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from fa_tune import families
from fa_tune.core.workload import Workload
from tests.gpu.cases import small_workloads
from tests.kernels.emulated.emulation import Emulated, EmulationFailed, schedules
from tests.kernels.emulated.problems import LAYOUTS, Problem, Room, faults

# Not a fork: the caller may have threads.
_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([__name__])
LONGEST_TEXT = 600  # of one finding


@dataclass(frozen=True)
class Verdict:
    """`launches` that were made and what was wrong with them: a line each, none if nothing."""

    launches: int
    findings: tuple[str, ...]


def judge(kernel: Emulated, *, repeats: int, seed: int = 0, limit_s: float = 600.0) -> Verdict:
    """A kernel on the small workloads of its traits, in `1 + repeats` launches of each, each with a
    schedule of its own."""
    return judge_on(kernel, workloads_of(kernel), repeats=repeats, seed=seed, limit_s=limit_s)


def workloads_of(kernel: Emulated) -> tuple[Workload, ...]:
    """Those for checking tools, and one of a dozen tiles with a single block of keys, so that who
    loads is ahead by as many tiles as there are places for their parts."""
    small = small_workloads(kernel.request.variant, kernel.request.traits)
    rows, keys = families.blocks(kernel.config)
    rows *= getattr(kernel.config, "cluster", 1)
    shape = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_len_q": 3 * rows, "seq_len_kv": keys}
    return (*small, dataclasses.replace(small[0], **shape))


def judge_on(
    kernel: Emulated,
    workloads: Sequence[Workload],
    *,
    repeats: int,
    seed: int = 0,
    limit_s: float = 600.0,
) -> Verdict:
    """As `judge`, on these workloads."""
    work = partial(_judge, kernel, workloads, repeats, seed)
    return in_own_process(work, lambda fault: Verdict(0, (fault,)), limit_s)


T = TypeVar("T")


def in_own_process(work: Callable[[], T], failed: Callable[[str], T], limit_s: float) -> T:
    """What `work`, which can be pickled, gives; or of what brought its process down, or that it was
    not done in time, in words, what `failed` makes of them."""
    answers: multiprocessing.Queue[T] = _PROCESSES.Queue()
    child = _PROCESSES.Process(target=_answer, args=(work, answers))
    child.start()
    waited = 0.0
    while waited < limit_s:
        try:
            found = answers.get(timeout=0.5)
            child.join()
            return found
        except queue.Empty:
            waited += 0.5
            if not child.is_alive() and answers.empty():
                return failed(f"the process ended with status {child.exitcode}")
    child.kill()
    child.join()
    return failed(f"not done in {limit_s:g} s")


def _answer(work: Callable[[], T], answers: multiprocessing.Queue[T]) -> None:
    answers.put(work())


def _judge(
    kernel: Emulated,
    workloads: Sequence[Workload],
    repeats: int,
    seed: int,
) -> Verdict:
    chosen = schedules(seed)
    launches = 0
    for number, workload in enumerate(workloads):
        layout = LAYOUTS[(seed + number) % len(LAYOUTS)]
        problem = Problem.draw(workload, layout, seed + number)
        first: tuple[Room, np.ndarray] | None = None
        for schedule in itertools.islice(chosen, 1 + repeats):
            launches += 1
            try:
                out, lse = kernel.launch(problem, schedule)
            except EmulationFailed as failed:
                wrong = [str(failed)[:LONGEST_TEXT]]
            else:
                if first is None:
                    first = out, lse
                    wrong = faults(problem, out, lse)
                else:
                    wrong = [] if _same(first, (out, lse)) else ["other bits than the first time"]
            if wrong:
                where = f"{workload.key} {layout} seed {seed + number}, {schedule}"
                return Verdict(launches, tuple(f"{where}: {what}" for what in wrong))
    return Verdict(launches, ())


def _same(one: tuple[Room, np.ndarray], other: tuple[Room, np.ndarray]) -> bool:
    """To the bit, surroundings included."""
    return all(
        np.array_equal(a.view(np.uint8), b.view(np.uint8))
        for a, b in ((one[0].whole, other[0].whole), (one[1], other[1]))
    )
