"""Judges an emulated kernel: its results against fp64, and that no schedule changes a bit of them
or makes it wait for ever.  Each kernel is launched in a process of its own, which it may bring
down."""

from __future__ import annotations

import itertools
import multiprocessing
import queue
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fa_tune.model import Workload
from fa_tune.reference import Inputs
from tests.emulated.emulation import Emulated, EmulationFailed, Schedule, schedules
from tests.gpu.cases import LAYOUTS, Case, small_workloads
from tests.gpu.oracle import KernelCall, check, equal_bits, faults, inputs_for

_FORK = multiprocessing.get_context("fork")  # torch is imported once
LONGEST_TEXT = 600  # of one finding


@dataclass(frozen=True)
class Verdict:
    """`launches` that were made and what was wrong with them: a line each, none if nothing."""

    launches: int
    findings: tuple[str, ...]


def judge(kernel: Emulated, *, repeats: int, seed: int = 0, limit_s: float = 600.0) -> Verdict:
    """A kernel on the small workloads of its traits, in whole `2 + repeats` launches of each, each
    with a schedule of its own."""
    workloads = small_workloads(kernel.request.variant, kernel.request.traits)
    return judge_on(kernel, workloads, repeats=repeats, seed=seed, limit_s=limit_s)


def judge_on(
    kernel: Emulated,
    workloads: Sequence[Workload],
    *,
    repeats: int,
    seed: int = 0,
    limit_s: float = 600.0,
) -> Verdict:
    """As `judge`, on these workloads."""
    answers: multiprocessing.Queue[Verdict] = _FORK.Queue()
    child = _FORK.Process(target=_judge, args=(kernel, workloads, repeats, seed, answers))
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
                return Verdict(0, (f"the process ended with status {child.exitcode}",))
    child.kill()
    child.join()
    return Verdict(0, (f"not done in {limit_s:g} s",))


def _judge(
    kernel: Emulated,
    workloads: Sequence[Workload],
    repeats: int,
    seed: int,
    answers: multiprocessing.Queue[Verdict],
) -> None:
    torch.set_num_threads(1)
    chosen = schedules(seed)
    findings: list[str] = []
    launches = 0
    for number, workload in enumerate(workloads):
        layout = LAYOUTS[(seed + number) % len(LAYOUTS)]
        if layout == "packed" and workload.seq_len_q != workload.seq_len_kv:
            layout = "strided"
        case = Case(kernel.request.variant, workload, layout, seed + number)
        used: list[Schedule] = []
        try:
            findings += faults(check(case, _call(kernel, chosen, used), "cpu"))
            if not findings:
                findings += _repeated(kernel, case, itertools.islice(chosen, repeats), used)
        except EmulationFailed as failed:
            findings.append(f"{case.name}: {str(failed)[:LONGEST_TEXT]} ({used[-1]})")
        launches += len(used)
        if findings:
            break
    answers.put(Verdict(launches, tuple(findings)))


def _call(kernel: Emulated, chosen: Iterator[Schedule], used: list[Schedule]) -> KernelCall:
    def call(w: Workload, inputs: Inputs, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        used.append(next(chosen))
        kernel.launch(w, inputs, out, lse, used[-1])

    return call


def _repeated(
    kernel: Emulated, case: Case, chosen: Iterator[Schedule], used: list[Schedule]
) -> Iterator[str]:
    """One more launch with each schedule; what they give must be the same to the bit."""
    w = case.workload
    inputs = inputs_for(w, case.layout, case.seed, "cpu", case.growth)
    first: list[torch.Tensor] | None = None
    for schedule in chosen:
        out = torch.full_like(inputs.q, torch.nan)
        lse = torch.full((w.batch, w.heads, w.seq_len_q), torch.nan) if w.lse else None
        used.append(schedule)
        kernel.launch(w, inputs, out, lse, schedule)
        results = [out] if lse is None else [out, lse]
        first = first or results
        if not all(itertools.starmap(equal_bits, zip(first, results, strict=True))):
            yield f"{case.name}: other bits with {schedule}"
            return
