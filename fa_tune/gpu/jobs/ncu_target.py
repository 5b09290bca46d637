"""The program that runs under ncu: every subject once before the window opens, then rounds in
fresh random order inside it.  ncu sees the launches; the order is reported beside them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fa_tune.core.inputs import InputSpec
from fa_tune.core.jobs import KernelItem, ProfileJob
from fa_tune.core.workload import Workload
from fa_tune.gpu.kernels import Launch, guarded, launcher, lse_for, output_for, use_device
from fa_tune.gpu.launch import profiler_start, profiler_stop
from fa_tune.gpu.reference import make_inputs
from fa_tune.gpu.versions import library_versions
from fa_tune.workers.main import Report


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.ProfileJob`."""
    job = ProfileJob.read(shared, items)
    use_device(job.device)
    workload = Workload.from_key(job.workload)
    inputs = make_inputs(workload, seed=job.seed, spec=InputSpec.parse(job.inputs))
    out, lse = output_for(inputs), lse_for(workload)
    launches: dict[str, Launch] = {}

    def prepare(item: KernelItem) -> Launch:
        launch = launcher(item, workload, inputs, out, lse)
        launch()
        return launch

    for name, item in job.items.items():
        report.begin(name)
        launch = guarded(report, name, partial(prepare, item))
        if launch is not None:
            launches[name] = launch
    torch.cuda.synchronize()
    profiler_start()
    for round_ in range(job.rounds):
        order = list(launches)
        random.Random(f"{job.seed}:{round_}").shuffle(order)
        for name in order:
            report.begin(name)
            if guarded(report, name, launches[name]) is None:
                del launches[name]
            else:
                report.partial(name, round_)
    profiler_stop()
    for name in launches:
        report.done(name, library_versions(job.items[name].subject))
