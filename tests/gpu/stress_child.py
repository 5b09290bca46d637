"""A worker that launches a held-up kernel again and again; every result must be that of the
ordinary kernel, to the bit.  See tests/gpu/stress.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import cupy
import torch

from fa_tune.core import codec
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.workers.main import Report
from tests.gpu.cases import Case
from tests.gpu.items import check_kernels, enqueue, launch_args, load, lse_for
from tests.gpu.oracle import inputs_for
from tests.gpu.stress import SLEEPS, sleeps_ns

AT_ONCE = 100  # launches between two looks at the device


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin and symbols of the ordinary kernel, stressed_cubin, stressed_symbol,
    case, repeats.  Value: launches, those that differed, and how many NaN the ordinary kernel's
    result had."""
    check_kernels(shared, items, report, stress)


def stress(kernel: CompiledKernel, item: Mapping[str, Any]) -> dict[str, Any]:
    """Launch back to back, each into an output filled with NaN and compared on the device: all
    that belongs to a launch is one graph, so that the host has next to nothing to do."""
    case = codec.load(Case, item["case"])
    stressed = {"cubin": item["stressed_cubin"], "symbols": [item["stressed_symbol"]]}
    held_up = load({**item, **stressed})
    w = case.workload
    inputs = inputs_for(w, case.layout, case.seed, "cuda", case.growth)
    out, lse = torch.empty_like(inputs["q"]), lse_for(w)
    outputs = [out] if lse is None else [out, lse]

    def launch(one: CompiledKernel) -> None:
        for tensor in outputs:
            tensor.fill_(math.nan)
        enqueue(one, w, launch_args(inputs, out, lse))

    launch(kernel)
    expected = [_bits(tensor).clone() for tensor in outputs]
    n_nan = sum(int(tensor.isnan().sum()) for tensor in outputs)
    limits = _limits_of(held_up)
    patterns = sleeps_ns(case.seed, int(item["repeats"]))
    table = torch.tensor(patterns, dtype=torch.int32, device="cuda")
    differs = torch.zeros(len(patterns), dtype=torch.int32, device="cuda")
    number = torch.zeros(1, dtype=torch.int64, device="cuda")

    def step() -> None:
        limits.copy_(table.index_select(0, number)[0])
        launch(held_up)
        wrong = [(_bits(t) != bits).any() for t, bits in zip(outputs, expected, strict=True)]
        differs.index_copy_(0, number, torch.stack(wrong).any().reshape(1).int())
        number.add_(1)

    step()  # the first by itself: what is made once is made before the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for done in range(1, len(patterns)):
        graph.replay()
        if done % AT_ONCE == 0:
            torch.cuda.synchronize()
    which = differs.nonzero().flatten().tolist()
    return {
        "case": case.name,
        "launches": int(number),
        "differ": len(which),
        "first": [[at, patterns[at]] for at in which[:5]],
        "n_nan": n_nan,
    }


def _limits_of(kernel: CompiledKernel) -> torch.Tensor:
    """The kernel's own array of limits, on the device."""
    place = kernel._module.get_global(SLEEPS)
    n = len(sleeps_ns(0, 1)[0])
    return torch.from_dlpack(cupy.ndarray((n,), "i4", memptr=place))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)
