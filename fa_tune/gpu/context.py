"""A GPU's context, made beside importing torch: half a second below a profiler."""

from __future__ import annotations

from cuda.bindings import driver


def make(device: int) -> None:
    """The primary context, which torch and CuPy will find.  Whatever goes wrong, they will say."""
    driver.cuInit(0)
    _, handle = driver.cuDeviceGet(device)
    driver.cuDevicePrimaryCtxRetain(handle)
