"""The default and a few other kernels on inputs that the search did not choose on; in the same
rounds, the default on those that it did.

Between two items the clock may change, so times of two items are never compared.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from fa_tune.core import codec
from fa_tune.core.jobs import CompareInputsJob, InputsItem, InputsResult
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.gpu.jobs.time_events import Subject, prepare_alike, problems_of_each, warm_up
from fa_tune.gpu.runners import runner_of
from fa_tune.workers.main import Report

ROUNDS = 15
SETTLE_S = 0.1  # of samples that count for nothing


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.CompareInputsJob`."""
    job = CompareInputsJob.read(shared, items)
    use_device(job.device)
    warm_up()
    for name, item in job.items.items():
        report.begin(name)
        found = guarded(report, name, partial(_compare, item, job.seed))
        if found is not None:
            report.done(name, codec.dump(found))


def _compare(item: InputsItem, seed: int) -> InputsResult:
    workload = Workload.from_key(item.workload)
    specs = (item.inputs, item.own_inputs) if item.own_inputs else (item.inputs,)
    problems, *own_problems = problems_of_each(workload, specs, seed)
    runners = [runner_of(kernel) for kernel in item.kernels]
    compared = [Subject(runner, problems) for runner in runners]
    on_own = [Subject(runners[0], own) for own in own_problems]
    subjects = [*compared, *on_own]
    prepare_alike(*subjects)
    settled = time.monotonic() + SETTLE_S
    while time.monotonic() < settled:
        for subject in subjects:
            subject.sample()
    first, *others = subjects
    for _ in range(ROUNDS):
        before = first.sample()
        first.samples.append(before)
        first.relative.append(1.0)
        for other in others:
            sample, after = other.sample(), first.sample()
            other.samples.append(sample)
            other.relative.append(2 * sample / (before + after))
            before = after
    return InputsResult(
        tuple(tuple(subject.samples) for subject in compared),
        tuple(tuple(subject.relative) for subject in compared),
        tuple(1 / ratio for subject in on_own for ratio in subject.relative),
    )
