"""Whatever can be launched on the tensors of a workload.  The jobs know nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from fa_tune import libraries, operations
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Variant, is_reference, reference_name
from fa_tune.core.workload import Workload
from fa_tune.families.launch import CacheArgs, LaunchArgs, TensorArg
from fa_tune.gpu.launch import Kernel
from fa_tune.libraries.base import CUPY, TORCH, Library
from fa_tune.operations.base import Launch, Problem, Tensors


class Runner(Protocol):
    """What can be launched."""

    @property
    def subject(self) -> str:
        """Its key in tables."""

    @property
    def versions(self) -> Mapping[str, str]:
        """The packages that it ran with, by name; known after the first call."""

    def bind(self, problem: Problem) -> Launch:
        """A call that enqueues one launch on torch's current stream.  Calls of one runner follow
        each other.  Only the first may allocate what a graph cannot hold.  Raises InvalidConfig for
        a workload that the runner has no call for."""


def runner_of(item: KernelItem) -> Runner:
    """The runner of a job item: a library (`ref:fa2`), or a variant's kernel."""
    return LibraryRunner(item.subject) if is_reference(item.subject) else CompiledKernel.load(item)


@dataclass(frozen=True)
class CompiledKernel:
    """A variant's kernel, loaded once for all problems."""

    subject: str
    kernel: Kernel

    @classmethod
    def load(cls, item: KernelItem) -> CompiledKernel:
        variant = Variant.from_key(item.subject)
        return cls(item.subject, Kernel(variant, item.cubin, item.symbol, *item.more_symbols))

    @property
    def versions(self) -> Mapping[str, str]:
        return {package.name: package.version for package in (TORCH, CUPY)}

    def bind(self, problem: Problem) -> Launch:
        arguments = named_args({**problem.inputs, **problem.outputs})

        def launch() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            self.kernel.launch(problem.workload, arguments, stream)

        return launch


@dataclass(frozen=True)
class LibraryRunner:
    """A library."""

    subject: str

    @property
    def _library(self) -> Library:
        return libraries.get(reference_name(self.subject))

    @property
    def versions(self) -> Mapping[str, str]:
        return self._library.versions

    def bind(self, problem: Problem) -> Launch:
        return self._library.bind(problem)


def outputs_of(
    workload: Workload, *, fill: float | None = None, device: str = "cuda"
) -> dict[str, torch.Tensor]:
    """Room for every output of the workload's operation, filled if asked."""
    found = {}
    for spec in operations.get(workload.op).tensors(workload):
        if spec.output:
            room = torch.empty(spec.shape, dtype=spec.dtype.to_torch_dtype(), device=device)
            found[spec.name] = room if fill is None else room.fill_(fill)
    return found


def results_of(problem: Problem, launch: Launch) -> Tensors:
    """All outputs of one call; what it does not give is what the problem's room holds."""
    return {**problem.outputs, **(launch() or {})}


def named_args(tensors: Tensors) -> LaunchArgs:
    """The launch arguments of a workload whose tensors have these names: views of any strides with
    four dimensions, [batch, heads], and other contiguous ones."""

    def argument(name: str, tensor: torch.Tensor) -> TensorArg:
        if tensor.ndim == 4:
            if tensor.dtype == torch.float8_e4m3fn:  # pairs of numbers are elements
                tensor = tensor.view(torch.int16)
            return TensorArg.of(tensor, name.upper())
        if tensor.ndim == 2:
            return TensorArg(tensor.data_ptr(), (tensor.stride(0), tensor.stride(1), 0))
        return TensorArg(tensor.data_ptr())

    cache = _cache_of(tensors)
    return LaunchArgs({n: argument(n, t) for n, t in tensors.items()}, cache=cache)


def _cache_of(tensors: Tensors) -> CacheArgs | None:
    """What launches are told of a cache, if there is one."""
    if (lengths := tensors.get("cache_seqlens")) is None:
        return None
    if (table := tensors.get("page_table")) is None:
        return CacheArgs(lengths.data_ptr())
    return CacheArgs(
        lengths.data_ptr(),
        pages=table.data_ptr(),
        page_size=tensors["k"].shape[1],
        page_stride=table.stride(0),
    )
