"""Launches kernels in a worker and looks at nothing: whatever runs beside them under a checking
tool would only be checked, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fa_tune import families
from fa_tune.families.traits import Traits
from fa_tune.handlers.device import check_kernels, launch_args
from fa_tune.launch import Kernel
from fa_tune.model import Workload
from fa_tune.reference import make_inputs
from fa_tune.verify import verification_workloads
from fa_tune.worker import Report


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, traits, cubin, symbol.  Value: how many launches there were."""

    def launch_item(kernel: Kernel, item: Mapping[str, Any]) -> int:
        family = families.get(kernel.variant.family)
        config = family.parse(kernel.variant.config)
        blocks = family.blocks(config)
        workloads = (
            *verification_workloads(blocks, config.d_head, config.dtype, item["traits"]),
            *family.extra_verification(config, item["traits"]),
        )
        return launch_all(kernel, workloads, Traits.parse(item["traits"]).lse)

    check_kernels(shared, items, report, launch_item)


def launch_all(kernel: Kernel, workloads: Sequence[Workload], lse: bool) -> int:
    """One launch per workload."""
    for workload in workloads:
        inputs = make_inputs(workload, seed=0)
        out = torch.empty_like(inputs.q)
        shape = (workload.batch, workload.heads, workload.seq_len_q)
        sums = torch.empty(shape, device="cuda") if lse else None
        stream = torch.cuda.current_stream().cuda_stream
        kernel.launch(workload, launch_args(inputs, out, sums), stream)
        torch.cuda.synchronize()
    return len(workloads)
