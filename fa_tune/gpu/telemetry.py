"""Conditions of a round of samples, and whether it can be trusted.

Before and after every round the baseline takes a sample; NVML is read all the while, beside the
rounds, since a GPU that waits for it begins the next round at another clock.  A round is flagged
if the baseline's two samples disagree, if the clock is far from what it was in the rounds just
before, or if heat or a power brake held the GPU back.  A power cap in software is how a good
kernel runs, and only noted; under it the clock wanders, so that what is far is told by the
rounds themselves.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fa_tune.core.jobs import Reading, Round
from fa_tune.gpu.guard import nvml_handle

MAD_SCALE = 1.4826  # of a normal distribution: standard deviation over median deviation
CLOCK_OFF = 0.03  # at least, of the median clock of the rounds just before
BASELINE_OFF = 0.03  # at least, between the baseline's two samples of a round
FEW = 3  # rounds of which nothing unusual can be told
RECENT = 7  # rounds that are just before
UNUSUAL = 3.0  # times the standard deviation, by the median, of those
KEPT = 100  # rounds at the beginning, and at the end, that are reported
WATCH_S = 0.01
REPEATS = 2  # rounds at most that are repeated because of flags, for every `runs` rounds

# Bits of NVML's clock event reasons.
_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
HELD_BACK = frozenset(_REASONS.values()) - {"software power cap"}


@dataclass
class Log:
    """The rounds of one run."""

    rounds: list[Round] = field(default_factory=list)

    def add(
        self, number: int, opening_s: float | None, closing_s: float | None, reading: Reading
    ) -> bool:
        """Note a round; returns whether it is flagged."""
        flags = []
        recent = self.rounds[-RECENT:]
        if opening_s and closing_s:
            change = closing_s / opening_s - 1.0
            before = [
                r.closing_s / r.opening_s - 1.0 for r in recent if r.opening_s and r.closing_s
            ]
            if abs(change) > BASELINE_OFF and _is_unusual(change, before):
                flags.append(f"the baseline changed by {100 * change:+.1f} %")
        clocks = [c for r in recent if (c := r.reading.sm_clock_hz) is not None]
        clock = reading.sm_clock_hz
        if clock and len(clocks) >= FEW:
            usual = statistics.median(clocks)
            off = clock / usual - 1.0
            if abs(off) > CLOCK_OFF and _is_unusual(clock, clocks):
                flags.append(f"the clock is off by {100 * off:+.1f} %")
        flags += sorted(HELD_BACK.intersection(reading.reasons))
        self.rounds.append(Round(number, opening_s, closing_s, reading, tuple(flags)))
        return bool(flags)

    @property
    def reported(self) -> tuple[Round, ...]:
        """The rounds that are reported; of very many, the first and the last."""
        if len(self.rounds) > 2 * KEPT:
            return (*self.rounds[:KEPT], *self.rounds[-KEPT:])
        return tuple(self.rounds)

    @property
    def flagged(self) -> dict[str, str]:
        """Why rounds are flagged, by their number."""
        return {str(r.number): ", ".join(r.flags) for r in self.rounds if r.flags}


def _is_unusual(value: float, before: Sequence[float]) -> bool:
    """Whether a value stands out from those before it; from very few, any does."""
    if len(before) < FEW:
        return True
    centre = statistics.median(before)
    spread = MAD_SCALE * statistics.median(abs(v - centre) for v in before)
    return abs(value - centre) > UNUSUAL * spread


class Repeats:
    """How many flagged rounds may be repeated: a GPU that is always flagged must not keep a
    run going for ever.  `runs` is the number of rounds in the first stage."""

    def __init__(self, runs: int) -> None:
        self._runs = max(1, runs)
        self._taken = 0

    def take(self, round_: int) -> bool:
        """Whether round `round_`, from 0, is repeated."""
        if self._taken >= REPEATS * (1 + round_ // self._runs):
            return False
        self._taken += 1
        return True


def watched(device: int) -> Callable[[], Reading]:
    """A function that tells at once what NVML said last; a thread asks it again and again."""
    read = reader(device)
    latest = [read()]

    def watch() -> None:
        while True:
            latest[0] = read()
            time.sleep(WATCH_S)

    threading.Thread(target=watch, daemon=True).start()
    return lambda: latest[0]


def reader(device: int) -> Callable[[], Reading]:
    """A function that asks NVML; without NVML it knows nothing."""
    try:
        import pynvml

        handle = nvml_handle(device)
    except Exception:  # a convenience: timing works without it
        return Reading

    def number(ask: Callable[[], Any], scale: float) -> float | None:
        with contextlib.suppress(Exception):  # a GPU may not tell
            value = float(ask()) * scale
            return value if math.isfinite(value) else None
        return None

    def read() -> Reading:
        bits = number(lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle), 1.0)
        return Reading(
            number(lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM), 1e6),
            number(lambda: pynvml.nvmlDeviceGetPowerUsage(handle), 1e-3),
            number(
                lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU), 1.0
            ),
            tuple(name for bit, name in _REASONS.items() if int(bits or 0) & bit),
        )

    return read
