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

from fa_tune.core.inputs import InputSpec
from fa_tune.core.jobs import ProfileItem, ProfileJob
from fa_tune.core.model import is_reference
from fa_tune.core.workload import Workload
from fa_tune.gpu.kernels import Launch, Problem, guarded, launchers, use_device
from fa_tune.gpu.launch import profiler_start, profiler_stop, unload_modules
from fa_tune.gpu.reference import make_inputs
from fa_tune.gpu.versions import library_versions
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
    """One workload; `before` is the subject that was launched last on the one before."""

    def __init__(
        self, job: ProfileJob, items: Mapping[str, ProfileItem], report: Report, before: str
    ) -> None:
        self._job, self._items, self._report = job, items, report
        self._before, self._last = before, ""
        self._workload = Workload.from_key(next(iter(items.values())).workload)
        spec = InputSpec.parse(job.inputs)
        inputs = make_inputs(self._workload, seed=job.seed, spec=spec)
        self._problem = Problem.of(self._workload, (inputs,))

    def run(self) -> str:
        """The subject that was launched last."""
        names = list(self._items)
        order = self._job.order(0, names, last=self._before)
        for group in [[name] for name in order] if self._job.rounds == 1 else [names]:
            self._measure(group)
        return self._last or self._before

    def _measure(self, names: Sequence[str]) -> None:
        """All rounds of these."""
        launches = self._prepared(names)
        profiler_start()
        for round_ in range(self._job.rounds):
            last = "" if round_ else self._before
            for name in self._job.order(round_, list(launches), last=last):
                self._report.begin(name)
                subject = self._items[name].subject
                if is_reference(subject) and subject == self._before and not self._last:
                    raise _CannotTell
                if guarded(self._report, name, launches[name]) is None:
                    del launches[name]
                    continue
                self._report.partial(name, round_)
                self._last = subject
        profiler_stop()
        for name in launches:
            self._report.done(name, library_versions(self._items[name].subject))
        launches.clear()
        unload_modules()

    def _prepared(self, names: Sequence[str]) -> dict[str, Launch]:
        """A launch of each that could be launched once."""
        launches: dict[str, Launch] = {}

        def prepare(item: ProfileItem) -> Launch:
            (launch,) = launchers(item, self._problem)
            launch()
            return launch

        for name in names:
            self._report.begin(name)
            launch = guarded(self._report, name, partial(prepare, self._items[name]))
            if launch is not None:
                launches[name] = launch
        torch.cuda.synchronize()
        return launches
