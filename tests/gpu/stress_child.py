"""A worker that launches a held-up kernel again and again; every result must be that of the
ordinary kernel, to the bit.  See tests/gpu/stress.py."""

import math
from collections.abc import Mapping
from typing import Any

import cupy
import torch

from fa_tune.core import codec
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.torch_side import outputs_of
from tests.gpu.cases import Case
from tests.gpu.items import enqueue, handler, load, results
from tests.gpu.oracle import bits, inputs_for
from tests.gpu.stress import SLEEPS, sleeps_ns

AT_ONCE = 100  # launches between two looks at the device


def stress(kernel: CompiledKernel, item: Mapping[str, Any]) -> dict[str, Any]:
    """Launches, those that differed, and how many NaN the ordinary kernel's result had.  Items:
    stressed_cubin, stressed_symbol, case, repeats.

    Launch back to back, each into an output filled with NaN and compared on the device: all that
    belongs to a launch is one graph, so that the host has next to nothing to do."""
    case = codec.load(Case, item["case"])
    stressed = {"cubin": item["stressed_cubin"], "symbols": [item["stressed_symbol"]]}
    held_up = load({**item, **stressed})
    w = case.workload
    inputs = inputs_for(w, case.layout, case.seed, "cuda", case.growth)
    expected = results(kernel, w, inputs)
    n_nan = sum(int(tensor.isnan().sum()) for tensor in expected)
    outputs = outputs_of(w)
    limits = _limits_of(held_up)
    patterns = sleeps_ns(case.seed, int(item["repeats"]))
    table = torch.tensor(patterns, dtype=torch.int32, device="cuda")
    differs = torch.zeros(len(patterns), dtype=torch.int32, device="cuda")
    number = torch.zeros(1, dtype=torch.int64, device="cuda")

    def step() -> None:
        limits.copy_(table.index_select(0, number)[0])
        for tensor in outputs.values():
            tensor.fill_(math.nan)
        enqueue(held_up, w, {**inputs, **outputs})
        pairs = zip(outputs.values(), expected, strict=True)
        wrong = [(bits(a) != bits(b)).any() for a, b in pairs]
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


handle = handler(stress)
