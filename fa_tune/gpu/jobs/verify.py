"""Worker side of verification: every item's kernel on every case of its traits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from fa_tune import families, ops
from fa_tune.core.inputs import NORMAL, InputSpec
from fa_tune.core.jobs import VerifyItem, VerifyJob
from fa_tune.core.model import CaseError, Verdict
from fa_tune.core.workload import Workload
from fa_tune.gpu.kernels import check_kernels, named_args
from fa_tune.gpu.launch import Kernel
from fa_tune.gpu.reference import Inputs, empty_outputs, reference_of
from fa_tune.ops.verification import case_error, verdict, verdict_to_json
from fa_tune.workers.main import Report

MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows


@dataclass(frozen=True)
class _Case:
    """Inputs, every output in fp32, and the largest error of the same computation in the kernel's
    own precision."""

    inputs: Inputs
    exact: Mapping[str, torch.Tensor]
    reference_error: float


@lru_cache(maxsize=64)
def _case(workload: Workload, seed: int, spec: InputSpec) -> _Case:
    # Every second batch of shapes comes with strides that are not the natural ones.
    reference = reference_of(workload)
    mean = MEAN if spec == NORMAL else 0.0
    inputs = reference.inputs(workload, seed=seed, mean=mean, extra_heads=seed % 2, spec=spec)
    exact = reference.outputs(inputs, workload, torch.float32)
    same = reference.outputs(inputs, workload)
    return _Case(inputs, exact, max(_difference(same[name], exact[name]) for name in same))


def check(kernel: Kernel, workload: Workload, seed: int, drawn: InputSpec = NORMAL) -> CaseError:
    """One case: outputs filled with NaN, one call, largest difference from fp32.  An output with
    a tolerance of its own that is not within it counts as an infinite error."""
    case = _case(workload, seed, drawn)
    outputs = empty_outputs(workload, fill=float("nan"))
    stream = torch.cuda.current_stream().cuda_stream
    kernel.launch(workload, named_args({**case.inputs.tensors, **outputs}), stream)
    torch.cuda.synchronize()
    error = 0.0
    for spec in ops.get(workload.op).tensors(workload):
        if not spec.output:
            continue
        out, exact = outputs[spec.name], case.exact[spec.name]
        if spec.tolerance is None:
            found = _difference(out, exact)
        else:
            near = torch.allclose(out, exact, rtol=spec.tolerance, atol=spec.tolerance)
            found = 0.0 if near else math.inf
        error = found if math.isnan(found) else max(error, found)
        if math.isnan(error):
            break
    result = case_error(workload, error, case.reference_error)
    return result if drawn == NORMAL else replace(result, workload=f"{result.workload}, {drawn}")


def _difference(out: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest |out − exact|; NaN if an element of `out` was never written, or is NaN."""
    return float((out.float() - exact).abs().max())


def check_all(
    kernel: Kernel, workloads: Sequence[Workload], seed: int, specs: Sequence[InputSpec] = ()
) -> Verdict:
    """The verdict over all cases, each with inputs of its own, and then with those of `specs`."""
    return verdict(
        [
            check(kernel, workload, seed + i, spec)
            for spec in (NORMAL, *specs)
            for i, workload in enumerate(workloads)
        ]
    )


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.VerifyJob`."""
    job = VerifyJob.read(shared, items)
    verify_items(
        job.device,
        job.items,
        job.seed,
        report,
        item_timeout_s=job.item_timeout_s,
        inputs=job.inputs,
    )


def verify_items(
    device: int,
    items: Mapping[str, VerifyItem],
    seed: int,
    report: Report,
    *,
    item_timeout_s: float | None = None,
    inputs: Sequence[str] = (),
) -> None:
    """Report the verdict of every item, on the verification's own inputs and those of `inputs`."""
    specs = [InputSpec.parse(text) for text in inputs]

    def check_item(kernel: Kernel, name: str) -> dict[str, Any]:
        workloads = families.verification_workloads(kernel.variant, items[name].traits)
        return verdict_to_json(check_all(kernel, workloads, seed, specs))

    check_kernels(device, items, report, check_item, item_timeout_s=item_timeout_s)
