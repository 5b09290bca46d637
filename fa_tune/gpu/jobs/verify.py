"""Worker side of verification: every item's kernel on every case of its traits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.inputs import InputSpec
from fa_tune.core.jobs import VerifyItem, VerifyJob
from fa_tune.core.model import CaseError, Verdict
from fa_tune.core.workload import Workload
from fa_tune.gpu.judged import Judged, judge, reference_of
from fa_tune.gpu.kernels import check_kernels, named_args
from fa_tune.gpu.launch import Kernel
from fa_tune.gpu.reference import Inputs, empty_outputs
from fa_tune.operations.base import NORMAL, CheckCase
from fa_tune.operations.verification import verdict
from fa_tune.workers.main import Report

MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows


@dataclass(frozen=True)
class _Known:
    """Inputs, and what must come out."""

    inputs: Inputs
    judged: Mapping[str, Judged]


@lru_cache(maxsize=32)
def _known(case: CheckCase, seed: int) -> _Known:
    # Every second batch of shapes comes with strides that are not the natural ones.
    reference = reference_of(case.workload)
    inputs = reference.inputs(case, seed=seed, mean=MEAN, extra_heads=seed % 2, device="cuda")
    return _Known(inputs, reference.judged(inputs, case.workload))


def check(kernel: Kernel, case: CheckCase, seed: int) -> CaseError:
    """One case: outputs filled with NaN, one call, and what is wrong with it."""
    known = _known(case, seed)
    outputs = empty_outputs(case.workload, fill=float("nan"))
    stream = torch.cuda.current_stream().cuda_stream
    kernel.launch(case.workload, named_args({**known.inputs.tensors, **outputs}), stream)
    torch.cuda.synchronize()
    return judge(case, known.judged, outputs)


def check_all(
    kernel: Kernel, cases: Sequence[CheckCase], seed: int, inputs: Sequence[str] = ()
) -> Verdict:
    """The verdict over all cases, each with inputs of its own, and then over those with normal
    inputs with each of `inputs` in their place, where the softmax scale allows such."""
    also = [
        (i, replace(case, inputs=text))
        for text in inputs
        for i, case in enumerate(cases)
        if case.inputs == NORMAL and _allows(case.workload, text)
    ]
    return verdict([check(kernel, case, seed + i) for i, case in (*enumerate(cases), *also)])


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
    items: Mapping[str, VerifyItem],
    seed: int,
    report: Report,
    *,
    item_timeout_s: float | None = None,
    thorough: bool = False,
    inputs: Sequence[str] = (),
) -> None:
    """Report the verdict of every item on the verification's own inputs and those of `inputs`,
    `thorough` on more cases."""

    def check_item(kernel: Kernel, name: str) -> Any:
        item = items[name]
        cases = families.verification_cases(kernel.variant, item.traits, thorough=thorough)
        if item.workload:
            cases = (*cases, CheckCase(Workload.from_key(item.workload)))
        return codec.dump(check_all(kernel, cases, seed, inputs))

    check_kernels(device, items, report, check_item, item_timeout_s=item_timeout_s)
