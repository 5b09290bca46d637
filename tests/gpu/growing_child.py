"""A worker that runs kernels on scores whose maxima grow from block to block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import Tensors
from fa_tune.workers.main import Report
from tests.gpu.growing import check
from tests.gpu.items import check_kernels, enqueue, launch_args


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin, symbol, problems (workload, growth).  Value: what is wrong."""
    check_kernels(shared, items, report, check_all)


def check_all(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """What is wrong with any of the item's problems."""

    def call(w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        enqueue(kernel, w, launch_args(inputs, out, lse))

    return [
        text
        for key, growth in item["problems"]
        for text in check(f"{item['subject']} {key}", Workload.from_key(key), growth, call)
    ]
