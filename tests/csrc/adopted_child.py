"""Kernels of a job's items on a stub of the driver, loaded by a stand-in for CuPy.

Arguments: the core's library, an empty folder.  Prints `right`.
"""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune import families
from fa_tune.build.native.core import Core, CoreKernel, KernelImage
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import KernelItem
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.base import Problem
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from tests.csrc.stub import Launched, Stub, image

WORKLOAD = Workload(4, 16, 16, 640, 1024, 128, DType.FP16)
DECODED = Workload(2, 8, 1, 1, 4096, 128, DType.BF16)
PAGED = replace(DECODED, cache_lengths="7+4096", page_size=16)
ROOM = 0x7E0000000000
MAPS, STRUCT = [128] * 4, 256


class FakeCupy(ModuleType):
    """Loads what the stub's binaries hold, and counts what it allocates."""

    def __init__(self, core: Core, stub: Stub) -> None:
        super().__init__("cupy")
        self.core, self.stub = core, stub
        self.loaded: list[CoreKernel] = []
        self.functions: dict[str, Any] = {}
        self.allocated: list[int] = []
        stream = SimpleNamespace(synchronize=lambda: None)
        self.cuda = SimpleNamespace(get_current_stream=lambda: stream)

    def RawModule(self, path: str) -> Any:
        return SimpleNamespace(get_function=self._function)

    def _function(self, symbol: str) -> Any:
        # What loads an image into the stub is a kernel of the core's own, whose plan says nothing.
        family = families.get("sm90")
        plan = family.plan(family.default_config(128, DType.FP16), "plain", "sm_90a")
        sizes = [STRUCT * 4] if symbol.startswith("decode") else [*MAPS, STRUCT]
        self.loaded.append(
            self.core.kernel(KernelImage(symbol, plan, (symbol,), image([(symbol, sizes)])))
        )
        self.loaded[-1].prepare()
        self.functions[symbol] = SimpleNamespace(
            kernel=SimpleNamespace(ptr=self.stub.kernel(symbol)), max_dynamic_shared_size_bytes=0
        )
        return self.functions[symbol]

    def empty(self, n_bytes: int, dtype: str) -> Any:
        self.allocated.append(n_bytes)
        return SimpleNamespace(data=SimpleNamespace(ptr=ROOM))


def item(config: Any, workload: Workload, symbols: tuple[str, ...]) -> KernelItem:
    family = families.of(config)
    key = families.variant_of(family, config).key
    traits = family.traits(config, workload)
    return KernelItem(key, "x.cubin", symbols, traits, family.compile_arch(limits((9, 0))))


def problem(workload: Workload) -> Problem:
    inputs = make_inputs(workload, seed=0, device="cpu")
    outputs = {"o": torch.empty((*inputs["q"].shape[:3], workload.d_v), dtype=inputs["q"].dtype)}
    if workload.lse:
        outputs["lse"] = torch.empty(workload.batch, workload.heads, workload.seq_len_q)
    return Problem(workload, inputs, outputs)


def counters(launched: Launched) -> bytes:
    """Of the struct behind the tensor maps: they follow the address of the log-sum-exp."""
    return launched.params[sum(MAPS) + 8 :][:8]


def main(library: str, _: str) -> None:
    stub, core = Stub(), Core(Path(library))
    sys.modules["cupy"] = cupy = FakeCupy(core, stub)
    from fa_tune.gpu import launch  # imports CuPy

    launch._core = lambda: core  # type: ignore[assignment]
    stream = SimpleNamespace(cuda_stream=0)
    torch.cuda.current_stream = lambda: stream  # type: ignore[assignment]

    sm90 = families.get("sm90").default_config(128, DType.FP16)
    kernel = launch.CompiledKernel(item(sm90, WORKLOAD, ("tiles",)))
    assert cupy.functions["tiles"].max_dynamic_shared_size_bytes == sm90.smem_bytes
    call = kernel.bind(problem(WORKLOAD))
    call()
    stream.cuda_stream = stub.stream()
    call()
    first, second = stub.launched()
    assert (first.symbol, first.block) == ("tiles", (sm90.threads, 1, 1))
    assert (first.grid, first.shared_bytes) == ((132, 1, 1), sm90.smem_bytes)
    # Its calls follow one another, on whatever streams.
    assert any(counters(first))
    assert first.params == second.params
    for wrong in (replace(WORKLOAD, causal=True), replace(WORKLOAD, lse=True)):
        with pytest.raises(InvalidConfig, match="does not compute"):
            kernel.bind(problem(wrong))()
    with pytest.raises(InvalidConfig):
        kernel.bind(problem(PAGED))()
    launch.CompiledKernel(item(sm90, WORKLOAD, ("few",)), multiprocessors=2).bind(
        problem(WORKLOAD)
    )()
    assert [one.grid for one in stub.launched()] == [(2, 1, 1)]
    assert cupy.allocated == []
    # A window that hides nothing is no part of a workload, and still compiled in.
    windowed = replace(item(sm90, WORKLOAD, ("wide",)), traits="causal+window")
    launch.CompiledKernel(windowed).bind(problem(WORKLOAD))()
    assert [one.symbol for one in stub.launched()] == ["wide"]

    decode = replace(families.get("decode").default_config(128, DType.BF16), dependent=True)
    names = families.of(decode).name_expressions(decode, "plain")
    symbols = tuple(f"decode{i}" for i in range(len(names)))
    kernel = launch.CompiledKernel(item(decode, DECODED, symbols))
    for workload in (DECODED, PAGED, DECODED):
        kernel.bind(problem(workload))()
    found = stub.launched()
    assert [one.symbol for one in found] == 3 * list(symbols)
    assert all(one.dependent for one in found)
    assert all(ROOM.to_bytes(8, "little") in one.params for one in found)
    assert len(cupy.allocated) == 1, "once: the largest so far serves all"
    print("right")


if __name__ == "__main__":
    main(*sys.argv[1:])
