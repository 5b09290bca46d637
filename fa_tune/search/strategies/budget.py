"""How much a search may spend, and the loop that spends it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fa_tune.core.errors import InvalidConfig
from fa_tune.search.strategies.base import Observation, Strategy

BATCH = 4  # points measured side by side before the strategy is asked again
_COUNT = r"(?P<count>[0-9]{1,9})"
_SECONDS = r"(?P<seconds>[0-9]{1,9}(?:\.[0-9]{1,3})?)"
_BUDGETS = tuple(re.compile(p) for p in (_COUNT, f"{_SECONDS}s", f"{_COUNT},{_SECONDS}s?"))

Measure = Callable[[Sequence[int]], Sequence[Observation]]


@dataclass(frozen=True)
class Budget:
    """At most so many measurements, so many seconds, or both; None: no such limit.

    A batch that has begun is finished, so the seconds are when the last one begins."""

    measurements: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        parts = [] if self.measurements is None else [f"{self.measurements} measurements"]
        parts += [] if self.seconds is None else [f"{self.seconds:g} s"]
        return " or ".join(parts) or "no limit"

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Read `60`, `300s` or `60,300s`; raises InvalidConfig."""
        found = next((m for p in _BUDGETS if (m := p.fullmatch(text.replace(" ", "")))), None)
        if found is None:
            raise InvalidConfig(
                f"budget {text!r} is neither measurements (60), nor seconds (300s), "
                "nor both (60,300s)"
            )
        parts = found.groupdict()
        count = int(parts["count"]) if "count" in parts else None
        seconds = float(parts["seconds"]) if "seconds" in parts else None
        if count == 0 or seconds == 0:
            raise InvalidConfig(f"budget {text!r} allows no measurement")
        return cls(count, seconds)


def spend(
    strategy: Strategy,
    budget: Budget,
    measure: Measure,
    *,
    batch: int = BATCH,
    clock: Callable[[], float] = time.monotonic,
) -> list[Observation]:
    """Propose, measure and observe until the budget or the space is used up.

    Returns the observations in order.  Raises what `measure` raises.
    """
    started = clock()
    observations: list[Observation] = []
    while budget.seconds is None or clock() - started < budget.seconds:
        n = batch
        if budget.measurements is not None:
            n = min(n, budget.measurements - len(observations))
        indices = strategy.propose(n) if n > 0 else []
        if not indices:
            break
        found = list(measure(indices))
        strategy.observe(found)
        observations += found
    return observations
