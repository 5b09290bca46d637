"""Launches kernels in a worker and looks at nothing: whatever runs beside them under a checking
tool would only be checked, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fa_tune import families
from fa_tune.families.traits import Traits
from fa_tune.handlers.device import guarded, launch_args, load, use_device
from fa_tune.launch import Kernel
from fa_tune.model import Variant, Workload
from fa_tune.reference import make_inputs
from fa_tune.verify import verification_workloads
from fa_tune.worker import Report


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, traits, cubin, symbol.  Value: how many launches there were."""
    use_device(int(shared["device"]))
    for name, item in items.items():
        report.begin(name)
        kernel = guarded(report, name, partial(load, item))
        if kernel is None:
            continue
        variant = Variant.from_key(item["subject"])
        family = families.get(variant.family)
        config = family.parse(variant.config)
        blocks = family.blocks(config)
        workloads = verification_workloads(blocks, config.d_head, config.dtype, item["traits"])
        lse = Traits.parse(item["traits"]).lse
        n_launches = guarded(report, name, partial(launch_all, kernel, workloads, lse))
        if n_launches is not None:
            report.done(name, n_launches)


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
