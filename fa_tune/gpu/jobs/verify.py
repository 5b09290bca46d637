"""Worker side of verification: every item's kernel on every case of its traits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from fa_tune import families, ops
from fa_tune.core.jobs import VerifyItem, VerifyJob
from fa_tune.core.model import CaseError, Verdict
from fa_tune.core.workload import Workload
from fa_tune.gpu.kernels import check_kernels, named_args
from fa_tune.gpu.launch import Kernel
from fa_tune.gpu.reference import Inputs, empty_outputs, reference_of
from fa_tune.ops.traits import Traits
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


@lru_cache(maxsize=32)
def _case(workload: Workload, seed: int) -> _Case:
    # Every second batch of shapes comes with strides that are not the natural ones.
    reference = reference_of(workload)
    inputs = reference.inputs(workload, seed=seed, mean=MEAN, extra_heads=seed % 2)
    exact = reference.outputs(inputs, workload, torch.float32)
    same = reference.outputs(inputs, workload)
    return _Case(inputs, exact, max(_difference(same[name], exact[name]) for name in same))


def check(kernel: Kernel, workload: Workload, seed: int) -> CaseError:
    """One case: outputs filled with NaN, one call, largest difference from fp32.  An output with
    a tolerance of its own that is not within it counts as an infinite error."""
    case = _case(workload, seed)
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
    return case_error(workload, error, case.reference_error)


def _difference(out: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest |out − exact|; NaN if an element of `out` was never written, or is NaN."""
    return float((out.float() - exact).abs().max())


def check_all(kernel: Kernel, workloads: Sequence[Workload], seed: int) -> Verdict:
    """The verdict over all cases, each with inputs of its own."""
    return verdict([check(kernel, w, seed + i) for i, w in enumerate(workloads)])


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.VerifyJob`."""
    job = VerifyJob.read(shared, items)
    verify_items(job.device, job.items, job.seed, report, item_timeout_s=job.item_timeout_s)


def verify_items(
    device: int,
    items: Mapping[str, VerifyItem],
    seed: int,
    report: Report,
    *,
    item_timeout_s: float | None = None,
) -> None:
    """Report the verdict of every item."""

    def check_item(kernel: Kernel, name: str) -> dict[str, Any]:
        family = families.get(kernel.variant.family)
        config = families.config_of(kernel.variant)
        traits = items[name].traits
        operation = ops.get(family.operation)
        workloads = (
            *operation.verification_workloads(
                family.blocks(config), config.d_head, config.dtype, Traits.parse(traits)
            ),
            *family.extra_verification(config, traits),
        )
        return verdict_to_json(check_all(kernel, workloads, seed))

    check_kernels(device, items, report, check_item, item_timeout_s=item_timeout_s)
