"""Items of the tests' own jobs: mappings of `subject`, `cubin`, `symbols` and what a test adds."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Artifact
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import check_runners
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.gpu.runners import Runner
from fa_tune.operations.base import Problem, Tensors
from fa_tune.operations.torch_side import outputs_of
from fa_tune.workers.main import Report


def kernel_item(item: Mapping[str, Any]) -> KernelItem:
    """The part of an item that says where its kernel is."""
    kernel = item["cubin"], tuple(item["symbols"]), item["traits"], item["arch"]
    return KernelItem(item["subject"], *kernel)


def load(item: Mapping[str, Any]) -> CompiledKernel:
    """The kernel of an item."""
    return CompiledKernel(kernel_item(item))


def enqueue(kernel: CompiledKernel, workload: Workload, tensors: Tensors) -> None:
    """Enqueue one call on torch's current stream; `tensors` are inputs and outputs."""
    kernel.bind(Problem(workload, tensors, {}))()


Handler = Callable[[Mapping[str, Any], Mapping[str, Any], Report], None]


def handler(check: Callable[[CompiledKernel, Mapping[str, Any]], Any]) -> Handler:
    """A worker that reports what `check(kernel, item)` finds for every item, on GPU
    `shared["device"]`."""

    def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
        def check_runner(runner: Runner, name: str) -> Any:
            assert isinstance(runner, CompiledKernel)
            return check(runner, items[name])

        kernels = {name: kernel_item(item) for name, item in items.items()}
        check_runners(int(shared["device"]), kernels, report, check_runner)

    return handle


def results(kernel: CompiledKernel, workload: Workload, inputs: Tensors) -> list[torch.Tensor]:
    """The outputs, full of NaN before, of a call that is enqueued."""
    room = outputs_of(workload, fill=torch.nan)
    enqueue(kernel, workload, {**inputs, **room})
    return list(room.values())


def by_cupy(artifact: Artifact, workload: Workload, inputs: Tensors) -> list[torch.Tensor]:
    """The outputs of a kernel that is launched as it is measured."""
    kernel = CompiledKernel(KernelItem.of(artifact.variant.key, artifact))
    found = results(kernel, workload, inputs)
    torch.cuda.synchronize()
    return found
