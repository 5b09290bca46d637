"""Kernels of cubin files: CuPy loads them, the C++ core launches them.

Imported by worker processes only: the parent never owns a CUDA context.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import cupy
import torch

from fa_tune import families
from fa_tune.build.native.call import problem_for, tensors_of
from fa_tune.build.native.core import Core
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Variant
from fa_tune.libraries.base import CUPY, TORCH
from fa_tune.operations.base import Launch, Problem


class CompiledKernel:
    """A variant's kernels, loaded once on the current GPU for all problems: the `runners.Runner` of
    a job item.

    Calls of one object must follow each other on the device: they share counters and a workspace.
    `multiprocessors`: how many grids of resident CTAs are made for; 0: all.  Raises InvalidConfig
    for a plan that nothing can launch, ToolMissing without the core, and whatever CuPy raises for a
    cubin that does not load.
    """

    def __init__(self, item: KernelItem, *, multiprocessors: int = 0) -> None:
        self.subject = item.subject
        variant = Variant.from_key(item.subject)
        config = families.config_of(variant)
        plan = families.get(variant.family).plan(config, item.traits, item.arch)
        # RawModule's own source path wants a device to name the architecture; a file does not.
        self._module = cupy.RawModule(path=item.cubin)
        functions = []
        for symbol, launch in zip(item.symbols, plan.launches, strict=True):
            function = self._module.get_function(symbol)
            function.max_dynamic_shared_size_bytes = launch.dynamic_smem_bytes
            functions.append(function.kernel.ptr)
        adopt = _core().adopt
        self._kernel = adopt(item.subject, plan, functions, multiprocessors=multiprocessors)
        self._workspace: Any = None
        self._workspace_bytes = 0

    @property
    def versions(self) -> Mapping[str, str]:
        return {package.name: package.version for package in (TORCH, CUPY)}

    def bind(self, problem: Problem) -> Launch:
        """A call that enqueues one launch on torch's current stream.  Only the first may allocate
        what a graph cannot hold.  Raises InvalidConfig for tensors that the kernel cannot read, and
        so does the call for a workload that it was not compiled for."""
        described = problem_for(self._kernel.plan, problem.workload)
        n_bytes = self._kernel.workspace_bytes(described)
        if n_bytes > self._workspace_bytes:
            self._workspace, self._workspace_bytes = _room(n_bytes), n_bytes
        address = self._workspace.data.ptr if n_bytes else 0
        tensors = tensors_of({**problem.inputs, **problem.outputs}, workspace=address)
        kept = problem, self._workspace

        def launch(_: object = kept) -> None:
            stream = torch.cuda.current_stream().cuda_stream
            self._kernel.launch(described, tensors, stream)

        return launch


@cache
def _core() -> Core:
    return Core()


def _room(n_bytes: int) -> Any:
    found = cupy.empty(n_bytes, "u1")
    cupy.cuda.get_current_stream().synchronize()  # launches may use another stream
    return found


def unload_modules() -> None:
    """Unload the modules of kernels that are gone, which CuPy would keep."""
    cupy.clear_memo()


def profiler_start() -> None:
    """Open the window in which a profiler started with profile-from-start off looks."""
    cupy.cuda.profiler.start()


def profiler_stop() -> None:
    """Close the window."""
    cupy.cuda.profiler.stop()
