"""Cubin to launch, with a CuPy that only writes down what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.families.launch import LaunchArgs, LaunchDevice, TensorArg
from fa_tune.gpu import launch
from tests.families.split import register as register_split
from tests.families.wave import WaveFamily, register

WORKLOAD = benchmark_workload(4096, 128, DType.FP16)
ARGS = LaunchArgs.forward(*(TensorArg(4096 * i, (56, 40, 24)) for i in range(1, 5)))
SCRATCH = 0xABC0


class FakeCupy:
    """Two GPUs of 132 and 114 multiprocessors; the second is current."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.allocated: list[int] = []
        self.function = SimpleNamespace(max_dynamic_shared_size_bytes=0)
        self.cuda = SimpleNamespace(
            Device=self._device,
            get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
        )

    def _device(self, index: int = 1) -> Any:
        found = {"MultiProcessorCount": (132, 114)[index], "L2CacheSize": 50 << 20}
        return SimpleNamespace(id=index, attributes=found)

    def RawModule(self, path: str) -> Any:
        return SimpleNamespace(get_function=lambda symbol: self)

    def __call__(self, grid: Any, block: Any, args: Any, *, shared_mem: int) -> None:
        self.launches.append((grid, block, args, shared_mem))

    def zeros(self, n_bytes: int, dtype: str) -> Any:
        self.allocated.append(n_bytes)
        return SimpleNamespace(data=SimpleNamespace(ptr=SCRATCH))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> FakeCupy:
    fake = FakeCupy()
    monkeypatch.setattr(launch, "cupy", fake)
    launch._launch_device.cache_clear()
    return fake


@pytest.fixture
def wave(monkeypatch: pytest.MonkeyPatch) -> WaveFamily:
    return register(monkeypatch)


def test_a_launch_knows_its_device_and_scratch_memory(cupy: FakeCupy, wave: WaveFamily) -> None:
    kernel = launch.Kernel(Variant("wave", wave.example), "x.cubin", "wave")
    kernel.launch(WORKLOAD, ARGS)
    kernel.launch(WORKLOAD, ARGS)
    grid, block, args, smem_bytes = cupy.launches[0]
    assert grid == (114, 1, 1), "as many CTAs as the current device has multiprocessors"
    assert block == (384, 1, 1)
    assert smem_bytes == wave.dynamic_smem_bytes(wave.parse(wave.example))
    assert cupy.max_dynamic_shared_size_bytes == smem_bytes  # type: ignore[attr-defined]
    tensor_map, _, _, counters = args
    assert (tensor_map.dtype.str, tensor_map.size) == ("|V128", 1)
    assert counters[0] == SCRATCH
    assert cupy.allocated == [8], "once, before anything is captured in a graph"
    assert cupy.launches[1][2][0] is tensor_map


def test_a_call_of_two_kernels_launches_both_and_keeps_what_is_between(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = register_split(monkeypatch)
    kernel = launch.Kernel(Variant("split", split.example), "x.cubin", "wave", "combine")
    kernel.launch(WORKLOAD, ARGS)
    kernel.launch(WORKLOAD, ARGS)
    assert [grid for grid, *_ in cupy.launches] == 2 * [(114, 1, 1), (16 * 16 * 4096, 1, 1)]
    (partial, out), smem_bytes = cupy.launches[1][2:]
    assert (int(partial[0]), int(out[0]), smem_bytes) == (SCRATCH, ARGS.o.address, 0)
    device = LaunchDevice(multiprocessors=114, l2_bytes=1 << 20)
    between = split.workspace_bytes(split.parse(split.example), WORKLOAD, device)
    assert cupy.allocated == [8, between], "once, however often it is called"


def test_a_kernel_that_is_not_there_is_not_launched(
    cupy: FakeCupy, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = register_split(monkeypatch)
    with pytest.raises(ValueError, match="argument 2 is longer"):
        launch.Kernel(Variant("split", split.example), "x.cubin", "wave")


def test_a_family_without_scratch_memory_gets_none(cupy: FakeCupy) -> None:
    family = families.get("sm80")
    launch.Kernel(Variant("sm80", family.example), "x.cubin", "k").launch(WORKLOAD, ARGS)
    assert cupy.allocated == []
    assert cupy.launches[0][0] == (64, 16, 16)
