"""The chosen kernel against the default, as a program gets them: chosen by the registry, loaded and
launched by `fa_tune.op`, in a process that has measured nothing before, in pairs ABBA.

Whatever favoured a kernel in the search (its place in the rounds, its neighbours, the luck of
being the best of many) does not favour it here.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fa_tune.build.native.call import problem_for, tensors_of
from fa_tune.build.native.core import CoreKernel
from fa_tune.core import codec
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import ABTestItem, ABTestJob, ABTestResult
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.gpu.jobs.time_events import Subject, prepare_alike, problems_of, warm_up
from fa_tune.libraries.base import Attend
from fa_tune.op import python_op
from fa_tune.op.plans import chooser_of
from fa_tune.op.state import operators
from fa_tune.operations.base import Launch, Problem
from fa_tune.operations.torch_side import outputs_of
from fa_tune.workers.main import Report

LEAST, MOST = 10, 50  # pairs
SETTLE_S = 0.3  # of pairs that count for nothing
BUDGET_S = 0.6  # of GPU time for the pairs of one workload
BUSY_CYCLES = 1_000_000  # about 0.5 ms: a call through Python takes its time to enqueue


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.ABTestJob`."""
    job = ABTestJob.read(shared, items)
    use_device(job.device)
    warm_up()
    for name, item in job.items.items():
        report.begin(name)
        found = guarded(report, name, partial(_pairs, Workload.from_key(name), item, job))
        if found is not None:
            report.done(name, codec.dump(found))


def _pairs(workload: Workload, item: ABTestItem, job: ABTestJob) -> ABTestResult:
    problems = problems_of(workload, job.inputs, job.seed)

    def prepared(registry: str, meant: str) -> Subject:
        program = _Program.of(workload, registry, job)
        if program.subject != meant:
            raise InvalidConfig(f"a program gets {program.subject} where the search means {meant}")
        return Subject(program, problems, busy_cycles=BUSY_CYCLES)

    a, b = prepared(item.registry, item.chosen), prepared(item.defaults, item.default)
    prepare_alike(a, b)

    def pair() -> tuple[float, float]:
        first, second, third, fourth = a.sample(), b.sample(), b.sample(), a.sample()
        return (first + fourth) / 2, (second + third) / 2

    warm = [pair()]  # count for nothing
    settled = time.monotonic() + SETTLE_S
    while time.monotonic() < settled:
        warm.append(pair())
    each_s = 2 * sum(statistics.fmean(times) for times in zip(*warm, strict=True))
    pairs = [pair() for _ in range(max(LEAST, min(MOST, int(BUDGET_S / each_s))))]
    return ABTestResult(tuple(p[0] for p in pairs), tuple(p[1] for p in pairs))


@dataclass(frozen=True)
class _Program:
    """Kernel that a program calls, or a library."""

    subject: str
    kernel: CoreKernel
    device: int
    attend: Attend | None

    @classmethod
    def of(cls, workload: Workload, registry: str, job: ABTestJob) -> _Program:
        """Kernel that a registry leads to."""
        device = torch.cuda.current_device()
        chooser = chooser_of(device, registry, cache_dir=Path(job.cache_dir))
        choice = chooser.choose(workload)
        kernel = operators().load(choice.artifact)
        kernel.prepare(device)
        attend = choice.attend and choice.attend(workload)
        return cls(choice.subject, kernel, device, attend)

    @property
    def versions(self) -> Mapping[str, str]:
        return {}

    def bind(self, problem: Problem) -> Launch:
        return partial(self._call, problem)

    def _call(self, problem: Problem) -> None:
        """Call the kernel as a program does, with room for results of its own."""
        workload, inputs = problem.workload, problem.inputs
        if self.attend is not None:
            self.attend(inputs["q"], inputs["k"], inputs["v"], workload.softmax_scale)
            return
        outputs = outputs_of(workload)
        described = problem_for(self.kernel.plan, workload)
        python_op.launch(self.kernel, described, tensors_of({**inputs, **outputs}), self.device)
