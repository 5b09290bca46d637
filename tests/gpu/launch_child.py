"""Workers for checking tools, under which everything takes long: kernels on small problems that
nevertheless take every path, and hardly anything beside them, which would only be checked, too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fa_tune.handlers.device import check_kernels, launch_args, lse_for
from fa_tune.handlers.verify import check_all
from fa_tune.launch import Kernel
from fa_tune.model import Variant, Workload
from fa_tune.reference import Inputs
from fa_tune.verify import verdict_to_json
from fa_tune.worker import Report
from tests.gpu.cases import small_workloads
from tests.gpu.oracle import grown

MULTIPROCESSORS = 2  # what persistent grids are told, so that a few tiles are several for each CTA
GROWTH = 10.0  # of the scores, towards the last key or the first: new maxima in each block, or none


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, traits, cubin, symbol.  Value: how many launches there were."""
    check_kernels(shared, items, report, launch_all)


def judge(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """The same items; the results are looked at as well.  Value: the product's own verdict."""

    def judged(kernel: Kernel, item: Mapping[str, Any]) -> dict[str, Any]:
        launch_all(kernel, item)
        return verdict_to_json(check_all(kernel, of_item(item), seed=0))

    check_kernels(shared, items, report, judged)


def of_item(item: Mapping[str, Any]) -> tuple[Workload, ...]:
    """The small problems of an item's kernel."""
    return small_workloads(Variant.from_key(item["subject"]), item["traits"])


def launch_all(kernel: Kernel, item: Mapping[str, Any]) -> int:
    """One launch per workload."""
    kernel._device = replace(kernel._device, multiprocessors=MULTIPROCESSORS)
    workloads = of_item(item)
    generator = torch.Generator(device="cuda").manual_seed(0)
    for w in workloads:
        q, k, v = (
            torch.randn(
                (w.batch, length, heads, w.d_head),
                generator=generator,
                device="cuda",
                dtype=w.dtype.to_torch_dtype(),
            )
            for length, heads in (
                (w.seq_len_q, w.heads),
                (w.seq_len_kv, w.kv_heads),
                (w.seq_len_kv, w.kv_heads),
            )
        )
        grown(k[:1], -GROWTH)
        grown(k[1:], GROWTH)
        args = launch_args(Inputs(q, k, v), torch.empty_like(q), lse_for(w))
        kernel.launch(w, args, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
    return len(workloads)
