"""The probe reads what libcuda and nvidia-smi say, and their absence, without either."""

from __future__ import annotations

import ctypes
import os
import subprocess
from typing import Any

import pytest

import gpu_probe

SMI_12 = """\
| NVIDIA-SMI 550.54.15      Driver Version: 550.54.15      CUDA Version: 12.4     |
"""
SMI_13 = """\
| NVIDIA-SMI 580.95.05      Driver Version: 580.95.05      CUDA Version: 13.0     |
"""


class FakeCuda:
    """libcuda of a machine with the given devices; `fails` names the call that does not work."""

    def __init__(self, version: int, devices: list[tuple[int, int]], fails: str = "") -> None:
        self.version, self.devices, self.fails = version, devices, fails

    @staticmethod
    def _set(pointer: Any, value: int) -> None:
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_int))[0] = value

    def cuInit(self, flags: int) -> int:
        return 100 if self.fails == "cuInit" else 0

    def cuDriverGetVersion(self, version: Any) -> int:
        self._set(version, self.version)
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        self._set(count, len(self.devices))
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: int) -> int:
        self._set(value, self.devices[device][{75: 0, 76: 1}[attribute]])
        return 0


@pytest.mark.parametrize(
    ("version", "expected"), [(13000, (13, 0)), (12080, (12, 8)), (13020, (13, 2))]
)
def test_driver_version_and_devices(version: int, expected: tuple[int, int]) -> None:
    devices = [(9, 0), (8, 6)]
    assert gpu_probe.from_driver(lambda name: FakeCuda(version, devices)) == (expected, devices)


@pytest.mark.parametrize("cuda", [FakeCuda(13000, []), FakeCuda(13000, [(9, 0)], fails="cuInit")])
def test_driver_without_a_device_is_no_gpu(cuda: FakeCuda) -> None:
    assert gpu_probe.from_driver(lambda name: cuda) is None


def test_no_library_and_no_program_is_no_gpu() -> None:
    def missing(*args: Any, **kwargs: Any) -> Any:
        raise FileNotFoundError

    assert gpu_probe.from_driver(missing) is None
    assert gpu_probe.from_nvidia_smi(missing) is None
    failed = subprocess.CompletedProcess((), returncode=9, stdout=SMI_13)
    assert gpu_probe.from_nvidia_smi(lambda *args, **kwargs: failed) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [(SMI_12, (12, 4)), (SMI_13, (13, 0)), ("CUDA Version: N/A", None), ("", None)],
)
def test_nvidia_smi(text: str, expected: tuple[int, int] | None) -> None:
    assert gpu_probe.parse_nvidia_smi(text) == expected


def test_hidden_devices_are_found_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    seen = []
    monkeypatch.setattr(
        gpu_probe,
        "from_driver",
        lambda: seen.append(os.environ.get("CUDA_VISIBLE_DEVICES")) or ((13, 0), [(9, 0)]),
    )
    assert gpu_probe.driver_cuda() == (13, 0)
    assert seen == [None]
