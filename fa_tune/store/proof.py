"""What `fa-tune prove` finds out about a program, and when that is enough: `Proof`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

from fa_tune.core.codec import NOT_NEGATIVE, POSITIVE
from fa_tune.core.stats import MARGIN, Ratio, median, paired_ratio
from fa_tune.core.stopping import bounds
from fa_tune.store.capture.schema import Capture, Served

FEWEST_PAIRS = 3  # before anything is said
Figure = Annotated[float, POSITIVE]
Ended = Literal["decided", "budget", "interrupted", "failed"]


class Verdict(StrEnum):
    """What is known: the program is faster, or slower, with our kernels; no gain of more than the
    margin is left to find; or nothing yet."""

    FASTER = "faster"
    SLOWER = "slower"
    NO_GAIN = "no gain"
    OPEN = "open"


@dataclass(frozen=True)
class Pair:
    """A run with our kernels and one without, one right after the other: the median of what the
    program printed in each, or its seconds."""

    ours: Figure
    torchs: Figure
    ours_first: bool


@dataclass(frozen=True)
class Share:
    """The part of a program's attention that one kernel served: its time in seconds, and as a
    share of all."""

    served: Served
    runs: Annotated[int, NOT_NEGATIVE]
    time_s: Annotated[float, NOT_NEGATIVE]
    share: Annotated[float, NOT_NEGATIVE]


@dataclass(frozen=True)
class Coverage:
    """What served the attention of a run with our kernels, the largest share first; `notes`: what
    could not be seen."""

    attention_s: Annotated[float, NOT_NEGATIVE]
    shares: tuple[Share, ...]
    notes: tuple[str, ...] = ()

    @property
    def tuned(self) -> float:
        """The share that was served by exact and near entries."""
        return sum(part.share for part in self.shares if part.served.entry in ("exact", "near"))


@dataclass(frozen=True, kw_only=True)
class Proof:
    """`fa-tune prove --json`: a program with our kernels and without, in fresh processes.
    `metric` is the pattern of what the program prints, empty for its wall time.  `time_ratio` is
    with over without, of times or of their inverse; None without a pair.  `ended` is why there are
    no more pairs, `problem` what went wrong."""

    schema: Literal["fa-tune-prove-1"]
    command: tuple[str, ...]
    started: str
    metric: str
    higher_is_better: bool
    pairs: tuple[Pair, ...]
    time_ratio: Ratio | None
    verdict: Verdict
    ended: Ended
    problem: str | None
    coverage: Coverage | None

    @property
    def medians(self) -> tuple[float, float]:
        """Of the runs with our kernels, and of those without."""
        return median([p.ours for p in self.pairs]), median([p.torchs for p in self.pairs])


def time_ratio(pairs: Sequence[Pair], *, higher_is_better: bool) -> Ratio | None:
    """Time with our kernels over that without, paired; None without pairs."""
    return paired_ratio(*_times(pairs, higher_is_better)) if pairs else None


def verdict(pairs: Sequence[Pair], *, higher_is_better: bool) -> Verdict:
    """What the pairs say so far; it may be asked after each."""
    if len(pairs) < FEWEST_PAIRS:
        return Verdict.OPEN
    ours, torchs = _times(pairs, higher_is_better)
    low, high = bounds(ours, torchs)
    if high - low < abs(1.0 - paired_ratio(ours, torchs).value):
        if high < 1.0:
            return Verdict.FASTER
        if low > 1.0:
            return Verdict.SLOWER
    return Verdict.NO_GAIN if low > 1.0 - MARGIN else Verdict.OPEN


def coverage_of(capture: Capture) -> Coverage:
    """What served the attention of a captured run."""
    found: dict[Served, tuple[int, float]] = {}
    for usage in capture.usages:
        runs, time_s = found.get(usage.served, (0, 0.0))
        found[usage.served] = runs + usage.runs, time_s + usage.time_s
    total = capture.attention_s
    shares = [Share(who, n, s, s / total if total else 0.0) for who, (n, s) in found.items()]
    shares.sort(key=lambda part: (-part.time_s, -part.runs))
    return Coverage(total, tuple(shares), capture.notes)


def _times(pairs: Sequence[Pair], higher_is_better: bool) -> tuple[list[float], list[float]]:
    both = [p.ours for p in pairs], [p.torchs for p in pairs]
    return ([1 / x for x in both[0]], [1 / x for x in both[1]]) if higher_is_better else both
