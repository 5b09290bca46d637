"""One GPU, wherever it is, as the flow uses it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fa_tune.core import devices
from fa_tune.core.devices import Numbers, pinned_to
from fa_tune.core.errors import ToolMissing
from fa_tune.core.jobs import ProbeItem, ProbeJob
from fa_tune.core.model import DeviceInfo, Outcome
from fa_tune.profile.base import Profiler
from fa_tune.workers.supervisor import ItemResult, WorkerUnusable, run_items

PROBE_TIMEOUT_S = 60.0
START_TIMEOUT_S = 180.0


class Interrupted(WorkerUnusable):
    """What ran a GPU's work died, through no fault of the work.  It is to be done again: on the
    same GPU if that has recovered, or on another."""


@dataclass(frozen=True)
class WorkerGpu:
    """One GPU, here one of this machine, as `label` names it to a reader.  Used by one thread at a
    time.  Workers are pinned to it by its UUID; where that is not known they see all GPUs, and this
    one is `number`."""

    label: str
    device: DeviceInfo
    number: int = 0

    @property
    def worker_device(self) -> int:
        """Its number in its worker processes."""
        return 0 if self.device.uuid else self.number

    def profiler_here(self, profiler: Profiler) -> Profiler:
        """The same profiler on this GPU, a copy: a profiler may learn while it measures, such as
        which metrics there are."""
        return copy.copy(profiler)

    def run_items(
        self,
        handler: str,
        shared: Mapping[str, Any],
        items: Mapping[str, Mapping[str, Any]],
        *,
        item_timeout_s: float,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> Iterator[ItemResult]:
        """`workers.supervisor.run_items` on this GPU, which is the worker's `worker_device`.
        Items may name files of this machine (`fa_tune.tune.fleet.ray_actor.FILES`)."""
        return run_items(
            handler,
            shared,
            items,
            item_timeout_s=item_timeout_s,
            start_timeout_s=start_timeout_s,
            env=pinned_to(self.device.uuid),
            retry_after_sigkill=True,
        )


class NoGpu(WorkerGpu):
    """In the place of a GPU, for work that needs none, such as a replay."""

    def __init__(self) -> None:
        super().__init__("no GPU", DeviceInfo("none", (0, 0), ""))

    def profiler_here(self, profiler: Profiler) -> Profiler:
        """See `WorkerGpu`."""
        return profiler

    def run_items(self, *_: object, **__: object) -> Iterator[ItemResult]:
        """Raises ToolMissing."""
        raise ToolMissing("no GPU found")


def local_gpus(numbers: Numbers) -> tuple[WorkerGpu, ...]:
    """GPUs of this machine by number; raises as `fa_tune.core.devices.find_devices`."""
    found = devices.find_devices(numbers)
    names = numbers if found and numbers != devices.ALL else range(len(found))
    return tuple(WorkerGpu(f"GPU {n}", device, n) for n, device in zip(names, found, strict=True))


def is_working(gpu: WorkerGpu) -> bool:
    """Whether a worker gets as far as computing something on the GPU."""
    job = ProbeJob(items={"probe": ProbeItem()}, device=gpu.worker_device)
    try:
        results = list(gpu.run_items(*job.request(), item_timeout_s=PROBE_TIMEOUT_S))
    except ToolMissing:
        return False
    return all(result.outcome is Outcome.OK for result in results)
