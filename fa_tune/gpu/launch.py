"""Cubin → module → launch.  The only file that touches the CUDA driver, through CuPy.

Imported by worker processes only: the parent never owns a CUDA context.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import cupy

from fa_tune import families
from fa_tune.core.model import Variant, Workload
from fa_tune.families.base import LaunchArgs, LaunchDevice


class Kernel:
    """A loaded kernel of one variant.

    Launches of one object must follow each other on the device: they share its scratch memory.
    Raises whatever CuPy raises for a cubin that does not load or launch.  Errors of the
    kernel itself surface at the next synchronisation and leave the context unusable.
    """

    def __init__(self, variant: Variant, cubin: str, symbol: str) -> None:
        self.variant = variant
        self._family = families.get(variant.family)
        self._config = families.config_of(variant)
        self._device = _launch_device(cupy.cuda.Device().id)
        # Here, since a launch may be captured in a graph, where nothing can be allocated.
        n_bytes = self._family.scratch_bytes(self._config)
        self._scratch = None
        if n_bytes:
            self._scratch = cupy.zeros(n_bytes, "u1")
            cupy.cuda.get_current_stream().synchronize()  # launches may use another stream
        # RawModule's own source path wants a device to name the architecture; a file does not.
        self._module = cupy.RawModule(path=cubin)
        self._function = self._module.get_function(symbol)
        self._function.max_dynamic_shared_size_bytes = self._family.dynamic_smem_bytes(self._config)

    def launch(self, workload: Workload, args: LaunchArgs, stream: int = 0) -> None:
        """Enqueue one launch on a CUDA stream given by its handle (0: the default stream)."""
        geometry = self._family.geometry(self._config, workload, self._device)
        if self._scratch is not None:
            args = replace(args, scratch=self._scratch.data.ptr)
        arguments = self._family.kernel_args(self._config, workload, args, self._device)
        parameters = tuple(arguments)
        if stream:
            with cupy.cuda.ExternalStream(stream):
                self._launch(geometry.grid, geometry.block, parameters, geometry.dynamic_smem_bytes)
        else:
            self._launch(geometry.grid, geometry.block, parameters, geometry.dynamic_smem_bytes)

    def _launch(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: tuple[object, ...],
        smem_bytes: int,
    ) -> None:
        self._function(grid, block, parameters, shared_mem=smem_bytes)


@cache
def _launch_device(index: int) -> LaunchDevice:
    """What launches need to know of a GPU."""
    attributes = cupy.cuda.Device(index).attributes
    return LaunchDevice(
        multiprocessors=int(attributes["MultiProcessorCount"]),
        l2_bytes=int(attributes["L2CacheSize"]),
    )


def profiler_start() -> None:
    """Open the window in which a profiler started with profile-from-start off looks."""
    cupy.cuda.profiler.start()


def profiler_stop() -> None:
    """Close the window."""
    cupy.cuda.profiler.stop()
