"""The program that runs under ncu: workload after workload, every subject once outside the window
that ncu looks into, then rounds in fresh random order inside it.  ncu sees the launches; the order
is reported beside them.

What ncu does around a launch takes longer the more modules are loaded, so a single round has one
kernel loaded at a time, and none stays for the next workload.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from fa_tune import libraries
from fa_tune.core.jobs import ProfileJob, WorkloadItem
from fa_tune.core.model import is_reference, is_users
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.gpu.jobs.time_events import FinalCheck
from fa_tune.gpu.launch import profiler_start, profiler_stop, unload_modules
from fa_tune.gpu.runners import Runner, runner_of
from fa_tune.operations.base import Launch, Problem
from fa_tune.operations.torch_side import outputs_of, torch_side_of
from fa_tune.workers.main import Report


class _CannotTell(Exception):
    """Two calls of one library would follow one another, of which only the place tells them
    apart."""


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """See `core.jobs.ProfileJob`."""
    job = ProfileJob.read(shared, items)
    use_device(job.device)
    last = ""  # the subject that was launched last
    for key in dict.fromkeys(item.workload for item in job.items.values()):
        mine = {name: item for name, item in job.items.items() if item.workload == key}
        try:
            last = _Profiled(job, mine, report, last).run()
        except _CannotTell:
            return  # the next process goes on from here


class _Profiled:
    """Subjects of one workload; `before`: the subject launched last on the one before."""

    def __init__(
        self, job: ProfileJob, items: Mapping[str, WorkloadItem], report: Report, before: str
    ) -> None:
        self._job, self._items, self._report = job, items, report
        self._before, self._last = before, ""
        workload = Workload.from_key(next(iter(items.values())).workload)
        inputs = torch_side_of(workload).inputs(workload, job.inputs, seed=job.seed)
        self._problem = Problem(workload, inputs, outputs_of(workload))

    def run(self) -> str:
        """The subject that was launched last."""
        names = list(self._items)
        order = self._job.order(0, names, last=self._before)
        for group in [[name] for name in order] if self._job.rounds == 1 else [names]:
            self._measure(group)
        return self._last or self._before

    def _measure(self, names: Sequence[str]) -> None:
        """All rounds of these."""
        runners = self._prepared(names)
        profiler_start()
        for round_ in range(self._job.rounds):
            last = "" if round_ else self._before
            for name in self._job.order(round_, list(runners), last=last):
                self._report.begin(name)
                subject = self._items[name].subject
                if is_reference(subject) and subject == self._before and not self._last:
                    raise _CannotTell
                if guarded(self._report, name, runners[name][1]) is None:
                    del runners[name]
                    continue
                self._report.partial(name, round_)
                self._last = subject
        profiler_stop()
        for name, (runner, _) in runners.items():
            self._report.done(name, dict(runner.versions))
        runners.clear()
        unload_modules()

    def _prepared(self, names: Sequence[str]) -> dict[str, tuple[Runner, Launch]]:
        """A launch of each that could be launched once, and, if it is a user's, was right."""
        runners: dict[str, tuple[Runner, Launch]] = {}
        check = FinalCheck(self._problem)

        def prepare(item: WorkloadItem) -> tuple[Runner, Launch]:
            runner = runner_of(item)
            launch = runner.bind(self._problem)
            launch()
            return runner, launch

        for name in names:
            item = self._items[name]
            self._report.begin(name, libraries.first_call_s(item.subject))
            prepared = guarded(self._report, name, partial(prepare, item))
            if prepared is None:
                continue
            if is_users(item.subject) and not check.passes(name, prepared[1], self._report):
                continue
            runners[name] = prepared
        torch.cuda.synchronize()
        return runners
