"""Cubin → module → launch, through CuPy: every launch but the empty one of `gpu.context`.

Imported by worker processes only: the parent never owns a CUDA context.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import cupy
from cuda.bindings import driver

from fa_tune import families
from fa_tune.core.model import Variant
from fa_tune.core.streams import stream_of
from fa_tune.core.workload import Workload
from fa_tune.families.launch import LaunchArgs, LaunchDevice, LaunchStep


class Kernel:
    """The loaded kernels of one variant: a call launches each of them once, in their order.

    `symbol` and `more_symbols` are their mangled names.  Calls of one object must follow each
    other on the device: they share its scratch memory and its workspace.  Raises whatever CuPy
    raises for a cubin that does not load or launch.  Errors of a kernel itself surface at the next
    synchronisation and leave the context unusable.
    """

    def __init__(self, variant: Variant, cubin: str, symbol: str, *more_symbols: str) -> None:
        self.variant = variant
        self._family = families.get(variant.family)
        self._config = families.config_of(variant)
        self._device = _launch_device(cupy.cuda.Device().id)
        # Here, since a call may be captured in a graph, where nothing can be allocated.
        n_bytes = self._family.scratch_bytes(self._config)
        self._scratch = _zeros(n_bytes) if n_bytes else None
        self._workspace: Any = None
        self._workspace_bytes = 0
        # RawModule's own source path wants a device to name the architecture; a file does not.
        self._module = cupy.RawModule(path=cubin)
        self._functions = []
        # Shared memory is that of any traits.
        launches = self._family.plan(self._config, "plain", "sm_80").launches
        for name, spec in zip((symbol, *more_symbols), launches, strict=True):
            function = self._module.get_function(name)
            function.max_dynamic_shared_size_bytes = spec.dynamic_smem_bytes
            self._functions.append(function)

    def launch(self, workload: Workload, args: LaunchArgs, stream: int = 0) -> None:
        """Enqueue one call on a CUDA stream given by its handle (0: the default stream).

        The first call on a workload may allocate its workspace: it must not be captured."""
        if self._scratch is not None:
            args = replace(args, scratch=self._scratch.data.ptr)
        if n_bytes := self._family.workspace_bytes(self._config, workload, self._device):
            args = replace(args, workspace=self._workspace_of(n_bytes))
        steps = self._family.launches(self._config, workload, args, self._device)
        if stream:
            with stream_of(stream):
                self._enqueue(steps)
        else:
            self._enqueue(steps)

    def _enqueue(self, steps: Sequence[LaunchStep]) -> None:
        for function, step in zip(self._functions, steps, strict=True):
            g = step.geometry
            if g.dependent:
                _launch_dependent(function.kernel.ptr, step, cupy.cuda.get_current_stream().ptr)
            else:
                function(g.grid, g.block, tuple(step.args), shared_mem=g.dynamic_smem_bytes)

    def _workspace_of(self, n_bytes: int) -> int:
        """The address of so much memory, kept for later calls."""
        if n_bytes > self._workspace_bytes:
            self._workspace, self._workspace_bytes = _zeros(n_bytes), n_bytes
        return int(self._workspace.data.ptr)


def _launch_dependent(function: int, step: LaunchStep, stream: int) -> None:
    """By the driver's bindings: CuPy has no such launch."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    config, g = driver.CUlaunchConfig(), step.geometry
    config.gridDimX, config.gridDimY, config.gridDimZ = g.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = g.block
    config.sharedMemBytes = g.dynamic_smem_bytes
    config.hStream = driver.CUstream(stream)
    config.attrs, config.numAttrs = [attribute], 1
    values = [array.ctypes.data for array in step.args]
    pointers = (ctypes.c_void_p * len(values))(*values)
    (status,) = driver.cuLaunchKernelEx(
        config, driver.CUfunction(function), ctypes.addressof(pointers), 0
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise cupy.cuda.driver.CUDADriverError(int(status))


def _zeros(n_bytes: int) -> Any:
    found = cupy.zeros(n_bytes, "u1")
    cupy.cuda.get_current_stream().synchronize()  # launches may use another stream
    return found


@cache
def _launch_device(index: int) -> LaunchDevice:
    """What launches need to know of a GPU."""
    attributes = cupy.cuda.Device(index).attributes
    return LaunchDevice(
        multiprocessors=int(attributes["MultiProcessorCount"]),
        l2_bytes=int(attributes["L2CacheSize"]),
    )


def unload_modules() -> None:
    """Unload the modules of kernels that are gone, which CuPy would keep."""
    cupy.clear_memo()


def profiler_start() -> None:
    """Open the window in which a profiler started with profile-from-start off looks."""
    cupy.cuda.profiler.start()


def profiler_stop() -> None:
    """Close the window."""
    cupy.cuda.profiler.stop()
