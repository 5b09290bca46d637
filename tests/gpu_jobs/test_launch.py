"""Cubin to launch, with a CuPy that only writes down what it is asked."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.families.launch import LaunchArgs, TensorArg
from fa_tune.gpu import launch

ONE = "decode(FP16, 128, 16, 64, 4): stages_2"
TWO = f"{ONE}+combine_kernel"
FEW_QUERIES = Workload(16, 2, 1, 1, 65536, 128, DType.FP16)
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


def test_a_launch_knows_its_device_and_memory(cupy: FakeCupy) -> None:
    kernel = launch.Kernel(Variant("decode", ONE), "x.cubin", "decode")
    kernel.launch(FEW_QUERIES, ARGS)
    kernel.launch(FEW_QUERIES, ARGS)
    grid, block, _, smem_bytes = cupy.launches[0]
    assert grid == (114, 1, 1), "as many CTAs as the current device has multiprocessors"
    assert block == (128, 1, 1)
    assert cupy.max_dynamic_shared_size_bytes == smem_bytes > 0  # type: ignore[attr-defined]
    counters, workspace = cupy.allocated
    assert counters == 4096
    assert workspace > counters, "once, however often it is called"


def test_a_call_of_two_kernels_launches_both(cupy: FakeCupy) -> None:
    kernel = launch.Kernel(Variant("decode", TWO), "x.cubin", "decode", "combine")
    kernel.launch(FEW_QUERIES, ARGS)
    kernel.launch(FEW_QUERIES, ARGS)
    assert [grid for grid, *_ in cupy.launches] == 2 * [(114, 1, 1), (16, 2, 1)]


def test_a_kernel_that_is_not_there_is_not_launched(cupy: FakeCupy) -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        launch.Kernel(Variant("decode", TWO), "x.cubin", "decode")


def test_a_family_without_scratch_memory_gets_none(cupy: FakeCupy) -> None:
    family = families.get("sm80")
    launch.Kernel(Variant("sm80", family.example), "x.cubin", "k").launch(WORKLOAD, ARGS)
    assert cupy.allocated == []
    assert cupy.launches[0][0] == (64, 16, 16)
