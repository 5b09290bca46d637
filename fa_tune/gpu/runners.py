"""Whatever can be launched on the tensors of a workload.  The jobs know nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from fa_tune import libraries
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Variant, is_reference, is_users, reference_name, user_place
from fa_tune.families.launch import CacheArgs, LaunchArgs, TensorArg
from fa_tune.gpu.launch import Kernel
from fa_tune.libraries import user
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
    """The runner of a job item: a library (`ref:fa2`), a user's (`user:…`), or a variant's
    kernel."""
    if is_users(item.subject):
        return user.locate(user_place(item.subject))
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
