"""A worker that runs kernels on their cases; see tests/gpu/oracle.py for the judging."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import Tensors
from fa_tune.workers.main import Report
from tests.gpu.cases import Case
from tests.gpu.items import check_kernels, enqueue, launch_args
from tests.gpu.oracle import KernelCall, check


def call_of(kernel: CompiledKernel) -> KernelCall:
    """The kernel as a function of tensors."""

    def call(w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        enqueue(kernel, w, launch_args(inputs, out, lse))
        torch.cuda.synchronize()

    return call


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin, symbol, cases.  Value: a list of one dict of figures per case."""
    check_kernels(
        shared, items, report, lambda kernel, item: check_all(call_of(kernel), item["cases"])
    )


def check_all(kernel: KernelCall, cases: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The figures of every case."""
    return [check(Case.from_json(case), kernel) for case in cases]
