"""A model of this run: times regressed on knobs and static facts."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fa_tune.search.strategies.base import Space, StrategyMemory
from fa_tune.search.strategies.features import matrix
from fa_tune.search.strategies.gaussian_process import GaussianProcess

Array = NDArray[np.float64]

INITIAL_POINTS = 6  # before the model is asked
PRIOR_POINTS = 3  # instead of the random ones, where other workloads say what to expect
PRIOR_WEIGHT = 2.0  # observations that it takes to halve the trust in that
OPTIMISM = 2.0  # standard deviations of the optimistic bound
RESIDENT = ("registers_resident", "smem_resident_bytes")  # of `points`
FULLEST = 0.25  # of the space


class Acquisition(NamedTuple):
    """How a proposal is chosen.  `speed`: the model predicts speed, which sees differences
    among fast points and hardly any among slow ones, else the logarithm of time, which sees
    all alike.  `near`: only neighbours of the fastest point.  `optimistic`: by the lower
    confidence bound, which explores, instead of the expected improvement."""

    speed: bool
    near: bool = False
    optimistic: bool = False


# By turns, because each gets stuck on some space: replayed on recorded ones of several kernels,
# every single criterion had seeds that never came near the best, and the mixture had few.
ACQUISITIONS = (
    Acquisition(True),
    Acquisition(False),
    Acquisition(True, near=True),
    Acquisition(False, optimistic=True),
)


class Surrogate(StrategyMemory):
    """Measures the start points and a few random ones that fill a multiprocessor well; then
    proposes, by turns of `ACQUISITIONS`, what the model promises most of.

    Points that failed count as slow as the slowest that ran.  Within a batch the models believe
    their own predictions about what was proposed before.
    """

    def __init__(self, space: Space, seed: int, name: str) -> None:
        super().__init__(space, seed, name)
        self._x, _ = matrix(space)
        self._models = {speed: GaussianProcess(self._x.shape[1]) for speed in (True, False)}
        self._prior = np.array(space.expected or [0.0] * len(space))
        self._turn = 0
        self._initial = self._initial_design()

    def propose(self, n: int) -> list[int]:
        """The initial design, then by turns what the models promise most of."""
        chosen: list[int] = []
        while len(chosen) < n and len(self.proposed) < len(self.space):
            initial = self.free(self._initial)
            if initial:
                chosen += self.take(initial[: n - len(chosen)])
            elif len(self.times) < 2:  # so far almost everything failed
                chosen += self.take(self.free(self.space.by_soft_rules)[:1])
            else:
                chosen += self.take(self._promising(n - len(chosen)))
        return chosen

    def _initial_design(self) -> list[int]:
        """The start points, then those of which most is expected from other workloads.  Where
        nothing is: random ones of those worth a start."""
        chosen = list(dict.fromkeys(self.space.start))
        if self.space.expected:
            ranked = sorted(range(len(self.space)), key=lambda i: (self.space.expected[i], i))
            return list(dict.fromkeys([*chosen, *ranked[:PRIOR_POINTS]]))
        among = [i for i in worth_a_start(self.space) if i not in chosen]
        wanted = max(0, INITIAL_POINTS - len(chosen))
        return chosen + self.random.sample(among, min(wanted, len(among)))

    def _promising(self, n: int) -> list[int]:
        times = self.times
        best = min(times, key=lambda i: (times[i], i))
        slowest = max(times.values())
        index = sorted(self.seen)
        seconds = np.array([times.get(i, slowest) for i in index])
        free = self.free()
        near = set(self.space.neighbours(best))
        incumbent: dict[bool, float] = {}
        prior_mean: dict[bool, Array] = {}
        chosen: list[int] = []
        while free and len(chosen) < n:
            acquisition = ACQUISITIONS[self._turn % len(ACQUISITIONS)]
            self._turn += 1
            speed = acquisition.speed
            model = self._models[speed]
            if speed not in incumbent:
                y = -times[best] / seconds if speed else np.log(seconds)
                prior_mean[speed] = self._prior_mean(y, index, speed)
                model.fit(self._x[index], y - prior_mean[speed][index])
                incumbent[speed] = float(y.min())
                for i in chosen:
                    model.believe(self._x[i])
            mean, deviation = model.predict(self._x[free])
            mean = mean + prior_mean[speed][free]
            if acquisition.optimistic:
                promise = OPTIMISM * deviation - mean
            else:
                promise = expected_improvement(incumbent[speed], mean, deviation)
            if acquisition.near and not near.isdisjoint(free):
                promise = np.where([i in near for i in free], promise, -np.inf)
            chosen.append(free.pop(int(promise.argmax())))
            if len(chosen) < n:
                for fitted in incumbent:
                    self._models[fitted].believe(self._x[chosen[-1]])
        return chosen

    def _prior_mean(self, y: Array, index: Sequence[int], speed: bool) -> Array:
        """What other workloads say of `y` at every point, as far as the observations `y` at
        `index` bear it out; zeros where nothing is expected."""
        prior: Array = -np.exp(-self._prior) if speed else self._prior
        x, y = prior[index] - prior[index].mean(), y - y.mean()
        variance = float(prior.var()) or 1.0
        weight = PRIOR_WEIGHT * variance
        slope = (float(x @ y) + weight) / (float(x @ x) + weight)
        return max(0.0, slope) * prior


def expected_improvement(best: float, mean: Array, deviation: Array) -> Array:
    """Expected improvement below `best` of normal variables with these means and deviations."""
    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    improvement: Array = deviation * (z * _normal_below(z) + density)
    return np.maximum(improvement, 0.0)


def _normal_below(z: Array) -> Array:
    below: Sequence[float] = [0.5 * math.erfc(-v / math.sqrt(2)) for v in z]
    return np.array(below)


def worth_a_start(space: Space) -> list[int]:
    """The quarter of the space that leaves least of a multiprocessor unused; where that is not
    known, the points that fewest soft rules object to."""
    unused = fullness(space)
    if unused is not None:
        limit = sorted(unused)[math.ceil(FULLEST * len(unused)) - 1]
        return [i for i, value in enumerate(unused) if value <= limit]
    objections = [len(point.soft_rules) for point in space.points]
    fewest = min(objections)
    return [i for i, n in enumerate(objections) if n == fewest]


def fullness(space: Space) -> list[float] | None:
    """How little of a multiprocessor's registers and shared memory each point leaves unused,
    lowest first: the sum of its ranks in both.  None where that is not known, or the same for
    all.

    Large blocks are what saves reads, and what they cost is registers and shared memory: on
    recordings of two families, five lengths and two head sizes the quarter of a space that
    uses most has twice its share of the fastest quarter.
    """
    ranks = []
    for name in RESIDENT:
        values = [point.facts.get(name) for point in space.points]
        known = [-v for v in values if v is not None]
        if len(known) < len(values):
            return None
        order = sorted(known)
        ranks.append([bisect.bisect_right(order, v) for v in known])
    total = [float(sum(both)) for both in zip(*ranks, strict=True)]
    return total if min(total) < max(total) else None
