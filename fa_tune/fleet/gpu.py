"""One GPU, wherever it is, as the pipeline uses it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from fa_tune.core import devices
from fa_tune.core.devices import Numbers, pinned_to
from fa_tune.core.errors import ToolMissing
from fa_tune.core.jobs import ProbeItem, ProbeJob
from fa_tune.core.model import DeviceInfo, Outcome
from fa_tune.profile.base import Profiler
from fa_tune.workers.supervisor import ItemResult, WorkerUnusable, run_items

PROBE_TIMEOUT_S = 60.0
START_TIMEOUT_S = 120.0


class Interrupted(WorkerUnusable):
    """What ran a board's work died, through no fault of the work: it is to be done again, on
    the board if that has recovered, or on another."""


class Board(Protocol):
    """One GPU, wherever it is.  Used by one thread at a time."""

    @property
    def label(self) -> str:
        """How a reader knows it."""

    @property
    def device(self) -> DeviceInfo:
        """The GPU."""

    def profiler_here(self, profiler: Profiler) -> Profiler:
        """The same profiler, on this GPU."""

    def run_items(
        self,
        handler: str,
        shared: Mapping[str, Any],
        items: Mapping[str, Mapping[str, Any]],
        *,
        item_timeout_s: float,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> Iterator[ItemResult]:
        """`workers.supervisor.run_items` on this board, which is the worker's device 0.  Items may
        name files of this machine (`fa_tune.fleet.ray_actor.FILES`)."""


@dataclass(frozen=True)
class LocalBoard:
    """A GPU of this machine."""

    label: str
    device: DeviceInfo

    def profiler_here(self, profiler: Profiler) -> Profiler:
        """A copy: a profiler may learn while it measures, such as which metrics there are."""
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
        """See `Board`."""
        return run_items(
            handler,
            shared,
            items,
            item_timeout_s=item_timeout_s,
            start_timeout_s=start_timeout_s,
            env=pinned_to(self.device.uuid),
            retry_after_sigkill=True,
        )


def local_boards(numbers: Numbers) -> tuple[Board, ...]:
    """GPUs of this machine by number; raises as `fa_tune.core.devices.find_devices`."""
    found = devices.find_devices(numbers)
    names = range(len(found)) if numbers == devices.ALL else numbers
    return tuple(LocalBoard(f"GPU {n}", device) for n, device in zip(names, found, strict=True))


def is_working(board: Board) -> bool:
    """Whether a worker gets as far as computing something on the board."""
    try:
        results = list(
            board.run_items(
                *ProbeJob(items={"probe": ProbeItem()}, device=0).request(),
                item_timeout_s=PROBE_TIMEOUT_S,
            )
        )
    except ToolMissing:
        return False
    return all(result.outcome is Outcome.OK for result in results)
