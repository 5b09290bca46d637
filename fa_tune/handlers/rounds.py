"""What a round of samples was taken under, and whether it can be trusted.

Before and after every round the baseline takes a sample; NVML is read all the while, beside the
rounds, since a GPU that waits for it begins the next round at another clock.  A round is flagged
if the baseline's two samples disagree, if the clock is far from what it was in the rounds
before, or if heat or a power brake held the GPU back.  A power cap in software is how a good
kernel runs, and only noted.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from fa_tune.handlers.device import nvml_handle

CLOCK_OFF = 0.03  # of the median clock so far
BASELINE_OFF = 0.03  # between the baseline's two samples of a round
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


@dataclass(frozen=True)
class Reading:
    """NVML at one moment; None: not told."""

    sm_clock_hz: float | None = None
    power_w: float | None = None
    temperature_c: float | None = None
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True)
class Round:
    """One round: `number` from 0, the baseline's `opening` and `closing` sample in seconds
    (None without a baseline), and why it is flagged, if it is."""

    number: int
    opening_s: float | None
    closing_s: float | None
    reading: Reading
    flags: tuple[str, ...] = ()


@dataclass
class Log:
    """The rounds of one run."""

    rounds: list[Round] = field(default_factory=list)

    def add(
        self, number: int, opening_s: float | None, closing_s: float | None, reading: Reading
    ) -> bool:
        """Note a round; returns whether it is flagged."""
        flags = []
        if opening_s and closing_s and abs(closing_s / opening_s - 1.0) > BASELINE_OFF:
            flags.append(f"the baseline changed by {100 * (closing_s / opening_s - 1.0):+.1f} %")
        clocks = [
            c for r in self.rounds if not r.flags and (c := r.reading.sm_clock_hz) is not None
        ]
        clock = reading.sm_clock_hz
        if clock and len(clocks) >= 3:
            off = clock / statistics.median(clocks) - 1.0
            if abs(off) > CLOCK_OFF:
                flags.append(f"the clock is off by {100 * off:+.1f} %")
        flags += sorted(HELD_BACK.intersection(reading.reasons))
        self.rounds.append(Round(number, opening_s, closing_s, reading, tuple(flags)))
        return bool(flags)

    def as_json(self) -> list[dict[str, Any]]:
        """The rounds for the report file; of very many, the first and the last."""
        some = self.rounds
        if len(some) > 2 * KEPT:
            some = some[:KEPT] + some[-KEPT:]
        return [asdict(one) for one in some]


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
        with contextlib.suppress(Exception):  # a board may not tell
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
