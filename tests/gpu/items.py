"""Items of the tests' own jobs: mappings of `subject`, `cubin`, `symbols` and what a test adds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fa_tune.core.jobs import KernelItem
from fa_tune.core.workload import Workload
from fa_tune.families.launch import LaunchArgs
from fa_tune.gpu.guard import check_runners
from fa_tune.gpu.launch import Kernel
from fa_tune.gpu.runners import CompiledKernel, Runner, named_args
from fa_tune.operations.base import Tensors
from fa_tune.operations.torch_side import outputs_of
from fa_tune.workers.main import Report


def kernel_item(item: Mapping[str, Any]) -> KernelItem:
    """The part of an item that says where its kernel is."""
    first, *more = item["symbols"]
    return KernelItem(item["subject"], item["cubin"], first, tuple(more))


def load(item: Mapping[str, Any]) -> Kernel:
    """The kernel of an item."""
    return CompiledKernel.load(kernel_item(item)).kernel


def check_kernels(
    shared: Mapping[str, Any],
    items: Mapping[str, Any],
    report: Report,
    check: Callable[[Kernel, Mapping[str, Any]], Any],
) -> None:
    """Report what `check(kernel, item)` finds for every item, on GPU `shared["device"]`."""

    def check_runner(runner: Runner, name: str) -> Any:
        assert isinstance(runner, CompiledKernel)
        return check(runner.kernel, items[name])

    check_runners(
        int(shared["device"]),
        {name: kernel_item(item) for name, item in items.items()},
        report,
        check_runner,
    )


def launch_args(inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None = None) -> LaunchArgs:
    """What launches are told of a forward pass; `lse` is fp32 [batch, heads, seq_len_q]."""
    outputs = {"o": out} if lse is None else {"o": out, "lse": lse}
    return named_args({**inputs, **outputs})


def lse_for(workload: Workload, fill: float | None = None) -> torch.Tensor | None:
    """Room for the log-sum-exp of a workload that wants it, filled if asked; else None."""
    return outputs_of(workload, fill=fill).get("lse")
