"""Statistics of durations: numbers in, numbers out.  Nothing here measures or prints.

A sample is one duration in seconds.  Samples of a measurement are in round order: sample i
of every measurement was taken in round i, so two measurements are compared round by round
and drift that hits both cancels out.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, NamedTuple

from fa_tune.core.codec import POSITIVE, Rule

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# numpy is imported inside functions: commands that compute nothing should not pay for it.

MARGIN = 0.01  # the default is left for a larger gain only
TIE = 0.005  # a ratio nearer to 1 than this is none
RESAMPLES = 2000
SEED = 20240229  # fixed, so that the same samples always give the same interval
CONFIDENCE = 0.95
SURE = 0.997  # of bounds that are looked at again and again: each look is a chance to err


class Interval(NamedTuple):
    """A 95 % interval, ends included; unit of the thing it is the interval of."""

    low: float
    high: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


ORDERED = Rule(lambda ends: 0.0 < ends[0] <= ends[1], "is no interval from above 0 upwards", {})


@dataclass(frozen=True)
class Ratio:
    """A quotient of times, without unit: below 1 the numerator is faster.

    `interval` is None where a single pair of samples tells nothing about the spread.
    """

    value: Annotated[float, POSITIVE]
    interval: Annotated[Interval, ORDERED] | None


def median(samples: Sequence[float]) -> float:
    """The median, in the samples' unit; raises ValueError without samples."""
    if not samples:
        raise ValueError("no samples: nothing has a median")
    return float(statistics.median(samples))


def median_interval(samples: Sequence[float], *, seed: int = SEED) -> Interval | None:
    """95 % percentile bootstrap interval of the median; None for a single sample.

    Raises ValueError without samples.
    """
    import numpy as np

    if not samples:
        raise ValueError("no samples: nothing has an interval")
    if len(samples) == 1:
        return None
    values = np.sort(np.asarray(samples, dtype=np.float64))
    lower, upper = _resampled_middles(len(samples), seed)
    medians = np.sort((values[lower] + values[upper]) / 2.0)
    last = RESAMPLES - 1
    tail = (1.0 - CONFIDENCE) / 2.0
    # The numbers of np.quantile, in a third of its time: a search takes thousands of intervals.
    low, high = np.interp((tail * last, (1.0 - tail) * last), np.arange(RESAMPLES), medians)
    return Interval(float(low), float(high))


def median_bounds(samples: Sequence[float], *, confidence: float = SURE) -> Interval:
    """Bounds of the median by ranks alone (the sign test), whatever the distribution, in the
    samples' unit: quick enough to be asked between samples.  Of so few samples that no rank is
    sure, the bounds are twice as far from the median as what was seen.

    Raises ValueError without samples.
    """
    if not samples:
        raise ValueError("no samples: nothing has bounds")
    ordered = sorted(samples)
    k = _sure_rank(len(ordered), confidence)
    if k == 0:
        centre = median(ordered)
        return Interval(2.0 * ordered[0] - centre, 2.0 * ordered[-1] - centre)
    return Interval(ordered[k - 1], ordered[-k])


def paired_ratio(
    numerator: Sequence[float], denominator: Sequence[float], *, seed: int = SEED
) -> Ratio:
    """Median of the per-round ratios over the rounds both took part in, with its interval.

    The shorter side was stopped early (or lost its last rounds); only rounds that both have
    are compared.  Raises ValueError without samples or with a duration that is not positive.
    """
    if not numerator or not denominator:
        raise ValueError("no samples: nothing to compare")
    if min(*numerator, *denominator) <= 0.0:
        raise ValueError("a duration must be positive")
    ratios = [a / b for a, b in zip(numerator, denominator, strict=False)]
    return Ratio(median(ratios), median_interval(ratios, seed=seed))


def is_tied(to_leader: Ratio, tie: float = TIE) -> bool:
    """Whether candidate/leader cannot be told from 1: its interval contains 1, or the ratio
    itself, single samples or not, lies within ±`tie`."""
    interval = to_leader.interval
    within = 1.0 - tie <= to_leader.value <= 1.0 + tie
    return within or (interval is not None and interval.contains(1.0))


def comparable(
    samples: Mapping[str, Sequence[float]], relative: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, ...]]:
    """What measurements are compared by: each sample over the baseline's right beside it, where
    all of them have that, so that a clock that wanders cancels out; else the samples."""
    if all(len(relative.get(s, ())) == len(taken) for s, taken in samples.items()):
        return {s: tuple(relative[s]) for s in samples}
    return {s: tuple(taken) for s, taken in samples.items()}


def levels(compared: Mapping[str, Sequence[float]], base: str) -> dict[str, float]:
    """A number for each by which they can be ordered although they left the race at different
    times: the median ratio to `base` over the rounds that both took part in."""
    return {s: paired_ratio(taken, compared[base]).value for s, taken in compared.items()}


@lru_cache(maxsize=1024)
def _sure_rank(n: int, confidence: float) -> int:
    """The largest k for which the k-th smallest and the k-th largest of n samples have the
    median between them with this confidence; 0 where not even the extremes do."""
    tail, term = 0.0, 0.5**n
    for k in range(n // 2 + 1):
        tail += term  # the chance that at most k samples lie below the median
        if 2.0 * tail > 1.0 - confidence:
            return k
        term *= (n - k) / (k + 1)
    return n // 2


@lru_cache(maxsize=64)
def _resampled_middles(n: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranks of the lower and upper middle element of every resample of n sorted samples.

    A resample's median is found by rank alone, so the draws are sorted once per n and not
    once per candidate.
    """
    import numpy as np

    ranks = np.random.default_rng(seed).integers(0, n, size=(RESAMPLES, n))
    ranks.sort(axis=1)
    return ranks[:, (n - 1) // 2].copy(), ranks[:, n // 2].copy()
