"""A worker that launches a held-up kernel again and again; every result must be that of the
ordinary kernel, to the bit.  See tests/gpu/stress.py."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import cupy
import torch

from fa_tune.handlers.device import check_kernels, launch_args, lse_for
from fa_tune.launch import Kernel
from fa_tune.worker import Report
from tests.gpu.cases import Case
from tests.gpu.oracle import inputs_for
from tests.gpu.stress import SLEEPS, sleeps_ns

AT_ONCE = 50  # launches between two looks at the device


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin and symbol of the ordinary kernel, stressed_cubin, stressed_symbol,
    case, repeats.  Value: launches, those that differed, and how many NaN the ordinary kernel's
    result had."""
    check_kernels(shared, items, report, stress)


def stress(kernel: Kernel, item: Mapping[str, Any]) -> dict[str, Any]:
    """Launch back to back, each into an output filled with NaN."""
    case = Case.from_json(item["case"])
    held_up = Kernel(kernel.variant, item["stressed_cubin"], item["stressed_symbol"])
    w = case.workload
    inputs = inputs_for(w, case.layout, case.seed, "cuda", case.growth)
    out, lse = torch.empty_like(inputs.q), lse_for(w)
    outputs = [out] if lse is None else [out, lse]

    def launch(one: Kernel) -> None:
        for tensor in outputs:
            tensor.fill_(math.nan)
        one.launch(w, launch_args(inputs, out, lse), torch.cuda.current_stream().cuda_stream)

    launch(kernel)
    expected = [_bits(tensor).clone() for tensor in outputs]
    n_nan = sum(int(tensor.isnan().sum()) for tensor in outputs)
    limits = _limits_of(held_up)
    patterns = sleeps_ns(case.seed, int(item["repeats"]))
    differs = torch.zeros(len(patterns), dtype=torch.bool, device="cuda")
    table = cupy.asarray(patterns, "u4")
    for number in range(len(patterns)):
        limits[...] = table[number]
        launch(held_up)
        for tensor, bits in zip(outputs, expected, strict=True):
            differs[number] |= (_bits(tensor) != bits).any()
        if number % AT_ONCE == 0:
            torch.cuda.synchronize()
    which = differs.nonzero().flatten().tolist()
    return {
        "case": case.name,
        "launches": len(patterns),
        "differ": len(which),
        "first": [[number, patterns[number]] for number in which[:5]],
        "n_nan": n_nan,
    }


def _limits_of(kernel: Kernel) -> cupy.ndarray:
    """The kernel's own array of limits, on the device."""
    place = kernel._module.get_global(SLEEPS)
    n = len(sleeps_ns(0, 1)[0])
    return cupy.ndarray((n,), "u4", memptr=place)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32)
