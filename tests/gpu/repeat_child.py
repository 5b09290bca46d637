"""A worker that launches kernels many times on one problem and compares the outcomes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from fa_tune.gpu.launch import CompiledKernel
from fa_tune.workers.main import Report
from tests.gpu.cases import Case
from tests.gpu.items import check_kernels, enqueue, launch_args, lse_for
from tests.gpu.oracle import equal_bits, inputs_for


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin, symbol, cases, repeats.  Value: figures of each case."""
    check_kernels(shared, items, report, repeat_all)


def repeat_all(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of every case: whether all launches gave the same bits, and how many NaN the first did."""
    return [repeat(kernel, Case.from_json(case), int(item["repeats"])) for case in item["cases"]]


def repeat(kernel: CompiledKernel, case: Case, times: int) -> dict[str, Any]:
    """Launch `times` times, back to back, each into tensors of its own filled with NaN."""
    w = case.workload
    inputs = inputs_for(w, case.layout, case.seed, "cuda", case.growth)
    found = []
    for _ in range(times):
        out = torch.full(inputs["q"].shape, math.nan, dtype=inputs["q"].dtype, device="cuda")
        lse = lse_for(w, math.nan)
        enqueue(kernel, w, launch_args(inputs, out, lse))
        found.append([out] if lse is None else [out, lse])
    torch.cuda.synchronize()
    first, *others = found
    return {
        "case": case.name,
        "repeats": all(equal_bits(a, b) for o in others for a, b in zip(first, o, strict=True)),
        "n_nan": sum(int(t.isnan().sum()) for t in first),
    }
