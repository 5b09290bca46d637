"""Which CUDA the NVIDIA driver speaks and which devices it drives, by the standard library alone.

    python tools/gpu_probe.py      {"driver_cuda": [13, 0], "compute_capabilities": [[9, 0]]}

It creates no CUDA context.  Who must stay free of the driver runs it as a child.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

# CUdevice_attribute of the CUDA driver API, cuda.h.
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76

Version = tuple[int, int]


def from_driver(load: Callable[[str], Any] = ctypes.CDLL) -> tuple[Version, list[Version]] | None:
    """(CUDA version of the driver, compute capability of each device) as libcuda says.

    None without the library, without a device, or when the driver does not start.
    """
    try:
        cuda = load("libcuda.so.1")
    except OSError:
        return None
    version, count = ctypes.c_int(), ctypes.c_int()
    if (
        cuda.cuInit(0)
        or cuda.cuDriverGetVersion(ctypes.byref(version))
        or cuda.cuDeviceGetCount(ctypes.byref(count))
        or count.value == 0
    ):
        return None
    capabilities = []
    for device in range(count.value):
        major, minor = ctypes.c_int(), ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device)
        cuda.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device)
        capabilities.append((major.value, minor.value))
    return (version.value // 1000, version.value % 1000 // 10), capabilities


def parse_nvidia_smi(text: str) -> Version | None:
    """The CUDA version in the head of nvidia-smi's table; None when it shows none."""
    found = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def from_nvidia_smi(run: Callable[..., Any] = subprocess.run) -> Version | None:
    """CUDA version of the driver as nvidia-smi says; None without a working nvidia-smi."""
    try:
        done = run(["nvidia-smi"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_nvidia_smi(done.stdout) if done.returncode == 0 else None


def driver_cuda() -> Version | None:
    """CUDA version that this machine's driver supports; None without a usable GPU.

    Devices hidden by CUDA_VISIBLE_DEVICES count: what to install is the machine's business.
    """
    with contextlib.suppress(KeyError):
        del os.environ["CUDA_VISIBLE_DEVICES"]
    found = from_driver()
    return found[0] if found else from_nvidia_smi()


def main() -> None:
    """Print what the driver says as one JSON object; CUDA_VISIBLE_DEVICES is obeyed."""
    version, capabilities = from_driver() or (None, [])
    print(json.dumps({"driver_cuda": version, "compute_capabilities": capabilities}))


if __name__ == "__main__":
    main()
