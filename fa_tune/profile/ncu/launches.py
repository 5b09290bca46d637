"""Launches and their metrics, in base units, as read from a profiler file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fa_tune.core.model import Quantity
from fa_tune.profile.ncu.metrics import DURATION, DURATIONS

NO_PROCESS = -1  # the report module does not say which process launched a kernel


@dataclass(frozen=True)
class Missing:
    """Why a value is absent: `no data`, `n/a`, `nan`, `inf`, `empty`, `not collected` or
    `instances`.  An absent value is never a number."""

    reason: str


MetricValue = Quantity | str | Missing
"""A number in base units, the name of an enumerator or device, or the reason for neither."""


@dataclass(frozen=True)
class Launch:
    """Profiled launch of a kernel; (host, process_id, launch_id) tells it from the others.

    `kernel_name` is as the file shows it (demangled, mangled or plain).  `block` and `grid`
    are None where the file has no such column (releases before 2021).  `device` is the
    device's index as text, `compute_capability` like `9.0` and `host` a machine's name; each may
    be empty.  `metrics` is keyed by ncu identifier, or `Section/Name` for the few display names
    that have none here.
    """

    process_id: int
    launch_id: int
    kernel_name: str
    block: tuple[int, int, int] | None
    grid: tuple[int, int, int] | None
    device: str
    compute_capability: str
    metrics: Mapping[str, MetricValue]
    host: str = ""

    def value(self, metric: str) -> MetricValue:
        """The metric, or Missing("not collected").  A duration may be there as an average,
        maximum or minimum, which of one launch are all the same."""
        found = self.metrics.get(metric, Missing("not collected"))
        if metric == DURATION and isinstance(found, Missing):
            others = (self.metrics.get(name) for name in DURATIONS)
            return next((v for v in others if isinstance(v, Quantity)), found)
        return found

    def quantity(self, metric: str) -> Quantity | None:
        """The metric if it is a number, else None."""
        value = self.value(metric)
        return value if isinstance(value, Quantity) else None

    @property
    def gpu(self) -> tuple[str, str, str, str]:
        """The GPU it ran on: name, `CC 9.0`, `device 0` and host; what the file lacks is empty."""
        name = self.metrics.get("device__attribute_display_name")
        return (
            name if isinstance(name, str) else "",
            self.compute_capability and f"CC {self.compute_capability}",
            self.device and f"device {self.device}",
            self.host,
        )


@dataclass(frozen=True)
class Profile:
    """Contents of one file.  `form` is `details`, `raw` or `report`; `diagnostics` are ncu's `==`
    lines, prefix kept; `warnings` are the reader's own remarks."""

    form: str
    launches: tuple[Launch, ...]
    diagnostics: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
