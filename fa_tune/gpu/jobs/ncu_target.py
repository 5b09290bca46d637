"""The program that runs under ncu: workload after workload, every subject once before the window
opens, then rounds in fresh random order inside it.  ncu sees the launches; the order is reported
beside them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from fa_tune.core.inputs import InputSpec
from fa_tune.core.jobs import ProfileItem, ProfileJob
from fa_tune.core.workload import Workload
from fa_tune.gpu.kernels import Launch, guarded, launcher, lse_for, output_for, use_device
from fa_tune.gpu.launch import profiler_start, profiler_stop
from fa_tune.gpu.reference import make_inputs
from fa_tune.gpu.versions import library_versions
from fa_tune.profile.ncu.match_launches import launch_order
from fa_tune.workers.main import Report


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.ProfileJob`."""
    job = ProfileJob.read(shared, items)
    use_device(job.device)
    last = before = ""  # the subject that was launched last on the workload before, and at all
    for key in dict.fromkeys(item.workload for item in job.items.values()):
        mine = {name: item for name, item in job.items.items() if item.workload == key}
        launches = _prepare(job, mine, report)
        subjects = {name: mine[name].subject for name in launches}
        if launches and launch_order(subjects, job.seed, 0, last=last) is None:
            return  # the next process goes on from here
        profiler_start()
        for round_ in range(job.rounds):
            for name in launch_order(subjects, job.seed, round_, last=last) or ():
                report.begin(name)
                if guarded(report, name, launches[name]) is None:
                    del launches[name], subjects[name]
                else:
                    report.partial(name, round_)
                    before = subjects[name]
            last = ""
        profiler_stop()
        last = before
        for name in launches:
            report.done(name, library_versions(subjects[name]))


def _prepare(
    job: ProfileJob, items: Mapping[str, ProfileItem], report: Report
) -> dict[str, Launch]:
    """A launch by item, of those that could be launched once."""
    workload = Workload.from_key(next(iter(items.values())).workload)
    inputs = make_inputs(workload, seed=job.seed, spec=InputSpec.parse(job.inputs))
    out, lse = output_for(inputs), lse_for(workload)
    launches: dict[str, Launch] = {}

    def prepare(item: ProfileItem) -> Launch:
        launch = launcher(item, workload, inputs, out, lse)
        launch()
        return launch

    for name, item in items.items():
        report.begin(name)
        launch = guarded(report, name, partial(prepare, item))
        if launch is not None:
            launches[name] = launch
    torch.cuda.synchronize()
    return launches
