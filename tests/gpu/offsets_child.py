"""A worker that runs kernels on tensors of more than 2³¹ elements; see tests/gpu/offsets.py."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.workers.main import Report
from tests.gpu.grid_child import call_of
from tests.gpu.items import load
from tests.gpu.offsets import check_lse, check_strides


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, cubin, symbol, workload, dimension.  Value: what is wrong, in words."""
    use_device(int(shared["device"]))
    for name, item in items.items():
        report.begin(name)
        kernel = guarded(report, name, partial(load, item))
        if kernel is None:
            continue
        workload, dimension = Workload.from_key(item["workload"]), item["dimension"]
        check = check_lse if dimension == "lse" else partial(check_strides, dimension=dimension)
        wrong = guarded(report, name, partial(check, call_of(kernel), workload))
        torch.cuda.empty_cache()
        if wrong is not None:
            report.done(name, wrong)
