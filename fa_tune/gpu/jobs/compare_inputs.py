"""The default and a few other kernels on inputs that the search did not choose on; in the same
rounds, the default on those that it did.

Between two items the clock may change, so times of two items are never compared.  Errors are those
of one batch element, over FlashAttention 2's on the same numbers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from fa_tune import libraries
from fa_tune.core import codec
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import HEADS
from fa_tune.core.jobs import CompareInputsJob, InputsItem, InputsResult
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.gpu.jobs.time_events import Subject, prepare_alike, problems_of_each, warm_up
from fa_tune.gpu.runners import Runner, runner_of
from fa_tune.operations.base import Launch, Problem
from fa_tune.operations.torch_side import outputs_of, results_of, torch_side_of
from fa_tune.workers.main import Report

ROUNDS = 15
SETTLE_S = 0.1  # of samples that count for nothing
MOST_HEADS = len(HEADS)  # of K and V, that errors are taken of


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
    errors = errors_over_fa2(workload, item.inputs, seed, runners)
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
        errors,
    )


def errors_over_fa2(
    workload: Workload, inputs: str, seed: int, runners: Sequence[Runner], device: str = "cuda"
) -> tuple[float | None, ...]:
    """Each runner's root mean square error over FlashAttention 2's, of several outputs the largest
    ratio; None where FlashAttention 2 refuses the workload or makes no error, or memory is too
    little to tell."""
    try:
        return _errors(_part_of(workload), inputs, seed, runners, device)
    except (InvalidConfig, RuntimeError):
        return (None,) * len(runners)


def _part_of(workload: Workload) -> Workload:
    """One batch element with a few heads, as many as there are kinds of heads in `trained`."""
    if workload.uneven:
        return workload
    kv_heads = min(workload.kv_heads, MOST_HEADS)
    group = workload.heads // workload.kv_heads
    return replace(workload, batch=1, heads=group * kv_heads, kv_heads=kv_heads)


def _errors(
    workload: Workload, inputs: str, seed: int, runners: Sequence[Runner], device: str
) -> tuple[float | None, ...]:
    side, outputs = torch_side_of(workload), outputs_of(workload, device=device)
    drawn = side.inputs(workload, inputs, seed=seed, device=device)
    problem = Problem(workload, drawn, outputs)
    fa2 = libraries.get("fa2").bind(problem)
    expected = side.expected(workload, problem.inputs, precise=torch.float32)
    judged = [name for name, one in expected.items() if one.reference is not None]

    def rms(launch: Launch) -> list[float]:
        found = results_of(problem, launch)
        off = (found[name].float() - expected[name].exact for name in judged)
        return [float(each.square().mean().sqrt()) for each in off]

    base = rms(fa2)

    def over_base(runner: Runner) -> float | None:
        pairs = zip(rms(runner.bind(problem)), base, strict=True)
        largest = max((own / theirs for own, theirs in pairs if theirs > 0), default=math.nan)
        return largest if math.isfinite(largest) else None

    return tuple(over_base(runner) for runner in runners)
