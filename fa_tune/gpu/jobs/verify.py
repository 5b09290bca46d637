"""Worker side of verification: every item's kernel on every case of its traits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from fa_tune import families
from fa_tune.core.model import CaseError, Verdict, Workload
from fa_tune.gpu.kernels import check_kernels, launch_args, lse_for
from fa_tune.gpu.launch import Kernel
from fa_tune.gpu.reference import Inputs, attention, log_sum_exp, make_inputs
from fa_tune.ops.verification import case_error, verdict, verdict_to_json, verification_workloads
from fa_tune.workers.main import Report

LSE_TOLERANCE = 1e-3
MEAN = 0.25  # off zero, so that a row that is lost or counted twice shows


@lru_cache(maxsize=32)
def _expected(workload: Workload, seed: int) -> tuple[Inputs, torch.Tensor, float]:
    """Inputs, the fp32 result, and the same-precision reference's largest error against it."""
    # Every second batch of shapes comes with strides that are not the natural ones.
    inputs = make_inputs(workload, seed=seed, mean=MEAN, extra_heads=seed % 2)
    exact = attention(inputs, workload, dtype=torch.float32)
    same = attention(inputs, workload)
    return inputs, exact, float((same - exact).abs().max())


def check(kernel: Kernel, workload: Workload, seed: int) -> CaseError:
    """One case: outputs poisoned with NaN, one launch, largest difference from fp32.  A wrong
    log-sum-exp, where the workload wants it, counts as an infinite error."""
    inputs, exact, reference_error = _expected(workload, seed)
    out = torch.full_like(inputs.q, float("nan"))
    lse = lse_for(workload, float("nan"))
    stream = torch.cuda.current_stream().cuda_stream
    kernel.launch(workload, launch_args(inputs, out, lse), stream)
    torch.cuda.synchronize()
    # max() of a tensor with a NaN is NaN, so an element never written fails the case.
    error = float((out.float() - exact).abs().max())
    if lse is not None:
        expected = log_sum_exp(inputs, workload)
        if not torch.allclose(lse, expected, rtol=LSE_TOLERANCE, atol=LSE_TOLERANCE):
            error = math.inf
    return case_error(workload, error, reference_error)


def check_all(kernel: Kernel, workloads: Sequence[Workload], seed: int) -> Verdict:
    """The verdict over all cases, each with inputs of its own."""
    return verdict([check(kernel, w, seed + i) for i, w in enumerate(workloads)])


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """`shared`: device, seed.  Items: subject, traits, cubin, symbol.  Value: the verdict."""

    def check_item(kernel: Kernel, item: Mapping[str, Any]) -> dict[str, Any]:
        family = families.get(kernel.variant.family)
        config = families.config_of(kernel.variant)
        traits = str(item["traits"])
        workloads = (
            *verification_workloads(family.blocks(config), config.d_head, config.dtype, traits),
            *family.extra_verification(config, traits),
        )
        return verdict_to_json(check_all(kernel, workloads, int(shared["seed"])))

    check_kernels(shared, items, report, check_item)
