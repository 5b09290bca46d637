"""Does the GPU compute at all?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fa_tune.core.jobs import ProbeJob
from fa_tune.gpu.guard import use_device
from fa_tune.workers.main import Report


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.ProbeJob`; the result is reported once a sum was right."""
    job = ProbeJob.read(shared, items)
    use_device(job.device)
    for name in job.items:
        report.begin(name)
        total = float(torch.ones(1024, device="cuda").sum())
        if total != 1024.0:
            report.failed(name, "wrong_result", f"1024 ones add up to {total}")
        else:
            report.done(name, torch.cuda.get_device_name(job.device))
