"""The jobs that verify and time, on the CPU; what stands for our kernels is attention by its
definition.  Importing it changes the process."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import ClassVar

import torch

from fa_tune.core.jobs import KernelItem
from fa_tune.gpu import runners
from fa_tune.gpu.jobs import time_events, verify
from fa_tune.operations import torch_side
from fa_tune.operations.base import Launch, Problem
from fa_tune.operations.forward.torch_side import all_inputs
from tests.tensors import attention


class Ours:
    """A compiled kernel that is right."""

    versions: ClassVar[dict[str, str]] = {}

    def __init__(self, item: KernelItem) -> None:
        self.subject = item.subject

    def bind(self, problem: Problem) -> Launch:
        def launch() -> None:
            o = attention(problem.inputs, problem.workload, dtype=torch.float32)
            problem.outputs["o"].copy_(o)

        return launch


class Event:
    """When the host came by, and a millisecond between two, so that no sample needs a graph."""

    def __init__(self, *, enable_timing: bool) -> None:
        self._at = 0.0

    def record(self) -> None:
        self._at = time.perf_counter()

    def query(self) -> bool:
        return False

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1.0 + 1e3 * (end._at - self._at)


for name, instead in {
    "Event": Event,
    "_sleep": lambda cycles: None,
    "current_stream": lambda: SimpleNamespace(cuda_stream=0),
    "empty_cache": lambda: None,
    "get_device_properties": lambda index=0: SimpleNamespace(L2_cache_size=1, uuid=""),
    "mem_get_info": lambda: (1 << 30, 1 << 30),
    "set_device": lambda index: None,
    "synchronize": lambda: None,
}.items():
    setattr(torch.cuda, name, instead)
for function in (torch_side.outputs_of, all_inputs.inputs):
    function.__kwdefaults__["device"] = "cpu"
runners.CompiledKernel = Ours  # type: ignore[assignment,misc]
time_events.SETTLE_S = 0.0
time_events.warm_up = lambda: None

time_handler, verify_handler = time_events.handle, verify.handle
