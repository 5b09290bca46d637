"""A worker that runs kernels on poisoned tensors, FlashAttention 2 beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import Tensors
from fa_tune.workers.main import Report
from tests.gpu.grid_child import call_of
from tests.gpu.items import check_kernels
from tests.gpu.poison import Library, Problem, check
from tests.libraries.calls import run
from tests.tensors import qkv


def flash_attention(w: Workload, inputs: Tensors) -> torch.Tensor:
    """torch's FlashAttention 2, [batch, seq, heads, d_head].

    With little to do it splits the keys, in tiles of another size; so that it does not, the
    batch is there many times over.
    """
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    times = -(-2 * multiprocessors // (w.batch * w.heads))
    many = qkv(*(t.repeat(times, 1, 1, 1) for t in (inputs["q"], inputs["k"], inputs["v"])))
    larger = replace(w, batch=times * w.batch)
    return run("fa2", many, larger)[: w.batch]


def library_for(one: Problem) -> Library | None:
    """FlashAttention 2, of torch, which knows no soft cap, as far as its tiles, which decide what
    hidden keys reach, are no smaller than the kernel's: 128×64 up to d_head 192, and 64×64
    above."""
    b_r, b_c = one.blocks
    rows = 128 if one.workload.d_head <= 192 else 64
    if one.workload.softcap is not None:
        return None
    return flash_attention if b_r <= rows and b_c <= 64 else None


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin, symbol, problem.  Value: what is wrong, in words."""

    def check_item(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
        one = Problem.from_json(item["problem"])
        return check(one, call_of(kernel), library_for(one), "cuda")

    check_kernels(shared, items, report, check_item)
