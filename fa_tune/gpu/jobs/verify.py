"""Worker side of verification: every item's kernel on every case of its traits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import torch

from fa_tune import families, operations
from fa_tune.core import codec
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import InputSpec
from fa_tune.core.jobs import VerifyJob, WorkloadItem
from fa_tune.core.model import CaseError, Variant, Verdict, is_users
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import check_runners
from fa_tune.gpu.runners import Runner
from fa_tune.operations.base import NORMAL, CheckCase, Problem, Tensors
from fa_tune.operations.torch_side import Judged, judge, outputs_of, results_of, torch_side_of
from fa_tune.operations.verification import verdict
from fa_tune.workers.main import Report

MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows


@dataclass(frozen=True)
class _Known:
    """Inputs, and what must come out."""

    inputs: Tensors
    judged: Mapping[str, Judged]


@lru_cache(maxsize=32)
def _known(case: CheckCase, seed: int) -> _Known:
    # Every second batch of shapes comes with strides that are not the natural ones.
    w, side = case.workload, torch_side_of(case.workload)
    inputs = side.inputs(w, case.inputs, seed=seed, mean=MEAN, extra_heads=seed % 2)
    return _Known(inputs, side.expected(w, inputs))


def check(runner: Runner, case: CheckCase, seed: int) -> CaseError:
    """Errors of one call on a case, whose outputs are filled with NaN first."""
    known = _known(case, seed)
    outputs = outputs_of(case.workload, fill=float("nan"))
    problem = Problem(case.workload, known.inputs, outputs)
    found = results_of(problem, runner.bind(problem))
    torch.cuda.synchronize()
    return judge(case, known.judged, found)


def check_all(
    runner: Runner, cases: Sequence[CheckCase], seed: int, inputs: Sequence[str] = ()
) -> Verdict:
    """The verdict over all cases, each with inputs of its own, and then over those with normal
    inputs with each of `inputs` in their place, where the softmax scale allows such.  A user's
    kernel is judged by those that it has a call for; raises InvalidConfig if it has for none."""
    also = [
        (i, replace(case, inputs=text))
        for text in inputs
        for i, case in enumerate(cases)
        if case.inputs == NORMAL and _allows(case.workload, text)
    ]
    found, refused = [], None
    for i, case in (*enumerate(cases), *also):
        try:
            found.append(check(runner, case, seed + i))
        except InvalidConfig as error:
            if not is_users(runner.subject):
                raise
            refused = error
    if refused is not None and not found:
        raise refused
    return verdict(found)


def _allows(workload: Workload, inputs: str) -> bool:
    try:
        InputSpec.parse(inputs).check(workload)
    except InvalidConfig:
        return False
    return True


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.VerifyJob`."""
    job = VerifyJob.read(shared, items)
    verify_items(
        *(job.device, job.items, job.seed, report),
        item_timeout_s=job.item_timeout_s,
        thorough=job.thorough,
        inputs=job.inputs,
    )


def verify_items(
    device: int,
    items: Mapping[str, WorkloadItem],
    seed: int,
    report: Report,
    *,
    item_timeout_s: float | None = None,
    thorough: bool = False,
    inputs: Sequence[str] = (),
) -> None:
    """Report the verdict of every item on the verification's own inputs and those of `inputs`,
    `thorough` on more cases."""

    @cache
    def cases_of(name: str) -> tuple[CheckCase, ...]:
        item = items[name]
        own = [CheckCase(Workload.from_key(item.workload))] if item.workload else []
        if is_users(item.subject):
            cases = operations.cases_like(own[0].workload, item.traits, thorough=thorough)
        else:
            variant = Variant.from_key(item.subject)
            cases = families.verification_cases(variant, item.traits, thorough=thorough)
        return (*cases, *own)

    def check_item(runner: Runner, name: str) -> Any:
        return codec.dump(check_all(runner, cases_of(name), seed, inputs))

    check_runners(device, items, report, check_item, item_timeout_s=item_timeout_s, kind=cases_of)
