"""Kernels loaded and launched by the driver's Python bindings: where there is no C++ compiler."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import replace
from typing import Any

import torch
from cuda.bindings import driver

from fa_tune import families
from fa_tune.core.errors import DriverError
from fa_tune.core.model import Artifact
from fa_tune.core.workload import Workload
from fa_tune.families.launch import LaunchArgs, LaunchDevice, LaunchStep


class DriverKernel:
    """One compiled variant.  Launches on one stream share a scheduler's counters; a captured graph
    has counters of its own."""

    def __init__(self, artifact: Artifact) -> None:
        self._family = families.get(artifact.variant.family)
        self._config = families.config_of(artifact.variant)
        call = self._family.plan(self._config, artifact.traits, artifact.arch)
        self.plan, self._launches = call.plan, call.launches
        self._artifact = artifact
        self._lock = threading.Lock()
        self._functions: dict[int, list[Any]] = {}
        self._devices: dict[int, LaunchDevice] = {}
        self._scratch: dict[tuple[int, int], torch.Tensor] = {}

    def prepare(self, device: int) -> None:
        """See `plans.Kernel`."""
        with self._lock, torch.cuda.device(device):
            if device in self._functions:
                return
            torch.cuda.current_stream().synchronize()  # makes the context
            path = self._artifact.cubin.encode()
            library = _call(driver.cuLibraryLoadFromFile, path, [], [], 0, [], [], 0)
            found = []
            for symbol, spec in zip(self._artifact.symbols, self._launches, strict=True):
                kernel = _call(driver.cuLibraryGetKernel, library, symbol.encode())
                function = _call(driver.cuKernelGetFunction, kernel)
                limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                _call(driver.cuFuncSetAttribute, function, limit, spec.dynamic_smem_bytes)
                found.append(function)
            properties = torch.cuda.get_device_properties(device)
            self._devices[device] = LaunchDevice(
                properties.multi_processor_count, properties.L2_cache_size
            )
            self._functions[device] = found

    def workspace_bytes(self, workload: Workload, device: int) -> int:
        """See `plans.Kernel`."""
        return self._family.workspace_bytes(self._config, workload, self._devices[device])

    def launch(self, workload: Workload, args: LaunchArgs, stream: int, device: int) -> None:
        """See `plans.Kernel`."""
        with torch.cuda.device(device):
            args = replace(args, scratch=self._counters(device, stream))
            steps = self._family.launches(self._config, workload, args, self._devices[device])
            for function, step in zip(self._functions[device], steps, strict=True):
                _launch(function, step, stream)

    def _counters(self, device: int, stream: int) -> int:
        """Zeros in device memory that no other stream uses."""
        n_bytes = self._family.scratch_bytes(self._config)
        if not n_bytes:
            return 0
        if torch.cuda.is_current_stream_capturing():
            # Of the graph's own memory; zeroed in every replay.
            return int(torch.zeros(n_bytes, dtype=torch.uint8, device=f"cuda:{device}").data_ptr())
        with self._lock:
            key = (device, stream)
            if key not in self._scratch:
                self._scratch[key] = torch.zeros(
                    n_bytes, dtype=torch.uint8, device=f"cuda:{device}"
                )
            return int(self._scratch[key].data_ptr())


def _launch(function: Any, step: LaunchStep, stream: int) -> None:
    geometry = step.geometry
    values = tuple(array.ctypes.data for array in step.args)
    pointers = (ctypes.c_void_p * len(values))(*values)
    _call(
        driver.cuLaunchKernel,
        function,
        *geometry.grid,
        *geometry.block,
        geometry.dynamic_smem_bytes,
        stream,
        ctypes.addressof(pointers),
        0,
    )


def _call(function: Any, *arguments: Any) -> Any:
    status, *values = function(*arguments)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(f"{function.__name__}: {status.name}")
    return values[0] if values else None
