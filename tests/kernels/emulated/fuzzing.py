"""Judges drawn kernels on drawn problems: the first launch of each problem against fp64, the others
to the bit against the first, each under a schedule of its own."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from tests.kernels.emulated.drawing import DrawnKernel, draw_trial
from tests.kernels.emulated.emulation import Emulated, EmulationFailed, build, schedules
from tests.kernels.emulated.judging import LONGEST_TEXT, in_own_process
from tests.kernels.emulated.trials import Trial


@dataclass(frozen=True)
class Found:
    """Of a kernel's problems: how many, in how many launches, what was wrong, a line each, and the
    largest share of the root mean square error that is allowed."""

    problems: int
    launches: int
    findings: tuple[str, ...]
    share: float


def judge_drawn(
    drawn: DrawnKernel, folder: Path, *, problems: int, repeats: int, seed: str, limit_s: float
) -> Found:
    """A kernel on so many problems, each in `1 + repeats` launches.  Raises ValueError if it does
    not compile."""
    kernel = build(drawn.request, folder)
    work = partial(_judge, drawn, kernel, problems, repeats, seed)
    return in_own_process(work, lambda fault: Found(0, 0, (fault,), 0.0), limit_s)


def _judge(drawn: DrawnKernel, kernel: Emulated, problems: int, repeats: int, seed: str) -> Found:
    torch.set_num_threads(1)
    launches, share, findings = 0, 0.0, []
    for number in range(problems):
        trial = draw_trial(drawn, f"{seed}/{number}")
        said = _judge_trial(trial, kernel, repeats, number)
        launches += said.launches
        share = max(share, said.share)
        findings += said.findings
    return Found(problems, launches, tuple(findings), share)


def _judge_trial(trial: Trial, kernel: Emulated, repeats: int, number: int) -> Found:
    first: bytes | None = None
    share = 0.0
    for launches, schedule in enumerate(itertools.islice(schedules(number), 1 + repeats), 1):
        wrong: tuple[str, ...] = ()
        try:
            result = trial.run(kernel, schedule)
        except EmulationFailed as failed:
            wrong = (str(failed)[:LONGEST_TEXT],)
        else:
            if first is None:
                first = result.bits()
                said = trial.judge(result)
                wrong, share = said.faults, said.share
            elif result.bits() != first:
                wrong = ("other bits than the first time",)
        if wrong:
            where = f"{trial.name}, {schedule}"
            return Found(1, launches, tuple(f"{where}: {what}" for what in wrong), share)
    return Found(1, 1 + repeats, (), share)
