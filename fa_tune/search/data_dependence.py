"""How a choice does on other inputs than those it was made on, and when that forbids it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_tune.core.stats import Ratio

LIMIT = 0.02  # more time than the default's, on any inputs, that a choice may take


@dataclass(frozen=True)
class OnInputs:
    """One config on one kind of inputs: its median in seconds, and its time over the default's
    beside it; None for the default itself, or without one."""

    inputs: str
    median_s: float
    to_default: Ratio | None

    @property
    def is_behind(self) -> bool:
        """Whether it is further behind the default than a choice may be."""
        return self.to_default is not None and self.to_default.value > 1.0 + LIMIT


def worst(figures: Sequence[OnInputs]) -> OnInputs | None:
    """Where a config does worst against the default; None where nothing was compared."""
    compared = [(f.to_default.value, f) for f in figures if f.to_default is not None]
    return max(compared, key=lambda pair: pair[0], default=(0.0, None))[1]


def first_sound(contenders: Sequence[str], figures: Mapping[str, Sequence[OnInputs]]) -> str | None:
    """The first that is nowhere behind; None if all are.  What was not compared is not behind."""
    return next((s for s in contenders if not any(f.is_behind for f in figures.get(s, ()))), None)


def slowdown(figures: Sequence[OnInputs], chosen_on: str) -> tuple[str, float] | None:
    """The inputs that take a config the most time, and that time over the one on `chosen_on`; None
    where that is not known."""
    times = {f.inputs: f.median_s for f in figures}
    if chosen_on not in times or len(times) < 2:
        return None
    slowest = max(times, key=lambda name: times[name])
    return slowest, times[slowest] / times[chosen_on]
