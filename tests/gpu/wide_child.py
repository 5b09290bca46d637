"""A worker that runs kernels on the problems of wide.py, and on several streams at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.workers.main import Report
from tests.gpu.items import check_kernels, enqueue, launch_args, load
from tests.gpu.oracle import equal_bits
from tests.gpu.wide import STREAMS, check, why

ROUNDS = 50
GATE_CYCLES = 4_000_000  # about 2 ms


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin, symbol, problems (workload, name of inputs).  Value: what is wrong."""
    check_kernels(shared, items, report, check_all)


def check_all(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """What is wrong with any of the item's problems."""

    def call(w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        enqueue(kernel, w, launch_args(inputs, out, lse))
        torch.cuda.synchronize()

    return [
        f"{item['subject']} {text}"
        for key, name in item["problems"]
        for text in check(name, Workload.from_key(key), call)
    ]


def handle_streams(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin, symbol, workload.  Value: what is wrong."""
    check_kernels(shared, items, report, check_streams)


def check_streams(_: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """Launches that overlap on several streams, each with a kernel and so with scratch of its own,
    must give what each gives alone, to the bit."""
    w = Workload.from_key(item["workload"])
    kernels = [load(item) for _ in range(STREAMS)]
    streams = [torch.cuda.Stream() for _ in range(STREAMS)]
    given = [make_inputs(w, seed=i) for i in range(STREAMS)]
    outs = [torch.full_like(one["q"], math.nan) for one in given]
    calls = [launch_args(one, out) for one, out in zip(given, outs, strict=True)]
    alone = []
    for kernel, args, out in zip(kernels, calls, outs, strict=True):
        enqueue(kernel, w, args)
        torch.cuda.synchronize()
        alone.append(out.clone())
    wrong = []
    for round_ in range(ROUNDS):
        for out in outs:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        # Launching takes longer than some kernels run: none begins before all are there.
        gate = torch.cuda.Event()
        torch.cuda._sleep(GATE_CYCLES)
        gate.record()
        for kernel, args, stream in zip(kernels, calls, streams, strict=True):
            stream.wait_event(gate)
            with torch.cuda.stream(stream):
                enqueue(kernel, w, args)
        torch.cuda.synchronize()
        wrong += [
            f"{item['subject']} {w.key}: round {round_}, stream {i} differs"
            for i in range(STREAMS)
            if not equal_bits(outs[i], alone[i])
        ]
    return wrong[:4] + why("alone", w, given[0], alone[0], None)
