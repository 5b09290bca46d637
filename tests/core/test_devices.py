"""Which GPU a number means: CUDA's numbering, told by NVML, under CUDA_VISIBLE_DEVICES."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune.core import devices as device
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.tune.session import open_machine

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33", "GPU-cc44")


@dataclass
class FakeNvml:
    """Four boards; `models` by number, where one is another model."""

    models: dict[int, str]
    running: int = 0
    broken: bool = False
    cores: int | None = 9984

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:
        self.running += 1

    def nvmlShutdown(self) -> None:
        self.running -= 1

    def nvmlDeviceGetCount(self) -> int:
        if self.broken:
            raise self.NVMLError("Driver/library version mismatch")
        return len(UUIDS)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return UUIDS[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != "MIG-1":
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode()

    def nvmlDeviceGetName(self, handle: str) -> str:
        number = UUIDS.index(handle) if handle in UUIDS else 0
        return self.models.get(number, "NVIDIA H200")

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> list[int]:
        return [9, 0]

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.1"

    def nvmlDeviceGetAttributes(self, handle: str) -> Any:
        if handle in UUIDS:
            raise self.NVMLError("not supported")
        return SimpleNamespace(multiprocessorCount=16)

    def nvmlDeviceGetNumGpuCores(self, handle: str) -> int:
        if self.cores is None:
            raise self.NVMLError("function not found")
        return self.cores

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(total=150)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml({})
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def uuids(monkeypatch: pytest.MonkeyPatch, visible: str) -> list[str]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return [found.uuid for found in device.visible_devices()]


def test_without_the_variable_all_are_seen(nvml: FakeNvml) -> None:
    found = device.visible_devices()
    assert [d.uuid for d in found] == list(UUIDS)
    assert found[0].name == "NVIDIA H200"
    assert found[0].compute_capability == (9, 0)
    assert nvml.running == 0, "NVML is left as it was found"


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("2", [2]),
        ("3,1", [3, 1]),
        (" 1 , 0 ", [1, 0]),
        ("GPU-bb33,GPU-aa11", [2, 0]),
        ("GPU-bb", [2]),  # the beginning of one UUID
        ("GPU-aa", []),  # of two
        ("GPU-", []),
        ("0,9,1", [0]),  # what is no GPU hides what follows
        ("-1,0", []),
        ("1,1,0", [1]),
        ("", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_renumbers_and_hides(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, visible: str, seen: list[int]
) -> None:
    assert uuids(monkeypatch, visible) == [UUIDS[n] for n in seen]


def test_a_part_of_a_gpu_is_found_by_its_uuid(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert uuids(monkeypatch, "MIG-1,2") == ["MIG-1", "GPU-bb33"]
    assert uuids(monkeypatch, "MIG-2") == []


def test_multiprocessors_are_those_of_the_device(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    h20 = device.find_device()
    assert h20.multiprocessors == 78
    assert device.limits_for("sm_90a", h20) == device.limits_for(None, h20)
    assert device.limits_for(None, h20).multiprocessors == 78
    assert device.limits_for("sm_80", h20).multiprocessors == 108
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-1")
    part = device.find_device()
    assert part.multiprocessors == 16


def test_a_device_whose_multiprocessors_nobody_counts(nvml: FakeNvml) -> None:
    nvml.cores = None
    found = device.find_device()
    assert found.multiprocessors is None
    assert device.limits_for(None, found).multiprocessors == 132


def test_a_number_is_cudas_not_nvmls(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,0")
    first, second = device.find_device(0), device.find_device(1)
    assert (first.uuid, second.uuid) == ("GPU-bb33", "GPU-aa11")
    with pytest.raises(ToolMissing, match="there is no GPU 2: CUDA_VISIBLE_DEVICES leaves 2"):
        device.find_device(2)


def test_a_gpu_that_is_not_there(nvml: FakeNvml) -> None:
    with pytest.raises(ToolMissing, match="there is no GPU 4; this machine has 4, from 0 on"):
        device.find_device(4)
    with pytest.raises(ToolMissing, match="there is no GPU 7; this machine has 4"):
        device.find_devices((0, 7))


def test_several(nvml: FakeNvml) -> None:
    assert [d.uuid for d in device.find_devices((3, 0))] == ["GPU-cc44", "GPU-aa11"]
    assert [d.uuid for d in device.find_devices("all")] == list(UUIDS)
    with pytest.raises(InvalidConfig, match="GPU 1 is named twice"):
        device.find_devices((1, 2, 1))


def test_gpus_of_different_models_are_refused(nvml: FakeNvml) -> None:
    nvml.models = {2: "NVIDIA A100"}
    assert len(device.find_devices((0, 1, 3))) == 3
    with pytest.raises(InvalidConfig, match="GPU 0 is an NVIDIA H200 and GPU 2 an NVIDIA A100"):
        device.find_devices("all")


def test_no_gpu(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert device.find_device() is None
    assert device.find_devices("all") == device.find_devices((0, 1)) == ()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert device.find_device(3) is None
    assert device.visible_devices() == ()


def test_a_driver_that_does_not_answer(nvml: FakeNvml) -> None:
    nvml.broken = True
    for ask in (device.find_device, device.visible_devices, lambda: device.find_devices("all")):
        with pytest.raises(ToolMissing, match="does not answer: Driver/library version mismatch"):
            ask()
    assert nvml.running == 0


def test_what_the_machine_knows(nvml: FakeNvml) -> None:
    machine = open_machine(MachineOptions(devices=(1, 3)), Silent())
    assert machine.gpu_uuid == "GPU-aa22"
    assert [g.label for g in machine.pool.gpus] == ["GPU 1", "GPU 3"]
    assigned = machine.pool.gpus[1]
    there = machine.on(assigned)
    assert (there.gpu_uuid, there.pool.gpus) == ("GPU-cc44", (assigned,))
    alone = open_machine(MachineOptions(device=2), Silent())
    assert (alone.gpu_uuid, [g.label for g in alone.pool.gpus]) == ("GPU-bb33", ["GPU 2"])
    with pytest.raises(InvalidConfig, match="give one of them"):
        open_machine(MachineOptions(device=1, devices=(0, 1)), Silent())
