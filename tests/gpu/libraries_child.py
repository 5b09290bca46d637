"""The worker of test_libraries.py: what a library returns against the definition."""

from collections.abc import Mapping
from typing import Any

import torch

from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.workers.main import Report
from tests.libraries.calls import run


def handle(spec: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """The largest difference of each item, a library's name and a workload's key."""
    use_device(int(spec["device"]))
    for name in items:
        report.begin(name)
        found = guarded(report, name, lambda name=name: _difference(*name.split(" ")))
        if found is not None:
            report.done(name, found)


def _difference(library: str, key: str) -> float:
    workload = Workload.from_key(key)
    inputs = make_inputs(workload, seed=1)
    exact = expected(workload, inputs)["o"].exact
    out = run(library, inputs, workload)
    torch.cuda.synchronize()
    assert out.shape == exact.shape
    return float((out.double() - exact.double()).abs().max())
