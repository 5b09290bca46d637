"""A model of this run: times regressed on knobs, static facts and soft rules."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fa_tune.search.strategies.base import Memory, Space, Strategy
from fa_tune.search.strategies.features import matrix
from fa_tune.search.strategies.gaussian_process import GaussianProcess

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

OPENING = 8  # points spread over the space before the model is asked
SPREAD_AMONG = 400  # candidates that the opening chooses from
HOPEFUL = 2.0  # standard deviations by which a hopeful proposal expects to be lucky


class Turn(NamedTuple):
    """How a proposal is chosen.  `speed`: the model predicts speed, which sees differences
    among fast points and hardly any among slow ones, else the logarithm of time, which sees
    all alike.  `near`: only neighbours of the fastest point.  `hopeful`: by the optimistic
    bound, which explores, instead of the expected gain."""

    speed: bool
    near: bool = False
    hopeful: bool = False


# By turns, because each gets stuck on some space: replayed on recorded ones of several kernels,
# every single criterion had seeds that never came near the best, and the mixture had few.
TURNS = (Turn(True), Turn(False), Turn(True, near=True), Turn(False, hopeful=True))


class Learned(Memory):
    """Opens with the start points and a spread of points to which fewest soft rules object;
    then proposes, by `TURNS`, what the model promises most of.

    Points that failed count as slow as the slowest that ran.  The proposals of one batch rest
    on the same model, and differ because a point is proposed once.
    """

    def __init__(self, space: Space, seed: int, name: str) -> None:
        super().__init__(space, seed, name)
        self._x, self.features = matrix(space)
        self._models = {speed: GaussianProcess(self._x.shape[1]) for speed in (True, False)}
        self._turn = 0
        self._opening = [*dict.fromkeys(space.start), *self._spread()]

    def propose(self, n: int) -> list[int]:
        """The opening, then by turns what the models promise most of."""
        chosen: list[int] = []
        while len(chosen) < n and len(self.proposed) < len(self.space):
            opening = self.free(self._opening)
            if opening:
                chosen += self.take(opening[: n - len(chosen)])
            elif len(self.times) < 2:  # so far almost everything failed
                chosen += self.take(self.free(self.space.by_soft_rules)[:1])
            else:
                chosen += self.take(self._promising(n - len(chosen)))
        return chosen

    def _spread(self) -> list[int]:
        """Points far from each other and from the start points, the first one at random, among
        those that fewest soft rules object to."""
        import numpy as np

        chosen = list(dict.fromkeys(self.space.start))
        others = [i for i in range(len(self.space)) if i not in chosen]
        objections = [len(self.space.points[i].soft_rules) for i in others]
        candidates = [i for i, n in zip(others, objections, strict=True) if n == min(objections)]
        self.random.shuffle(candidates)
        candidates = candidates[:SPREAD_AMONG]
        x = self._x[candidates]
        nearest = np.full(len(candidates), np.inf)
        for i in chosen:
            nearest = np.minimum(nearest, ((x - self._x[i]) ** 2).sum(1))
        spread: list[int] = []
        while len(spread) < min(OPENING - len(chosen), len(candidates)):
            at = int(nearest.argmax())
            spread.append(candidates[at])
            nearest = np.minimum(nearest, ((x - x[at]) ** 2).sum(1))
            nearest[at] = -1.0
        return spread

    def _promising(self, n: int) -> list[int]:
        import numpy as np

        times = self.times
        best = min(times, key=lambda i: (times[i], i))
        slowest = max(times.values())
        index = sorted(self.seen)
        seconds = np.array([times.get(i, slowest) for i in index])
        free = self.free()
        near = set(self.space.neighbours(best))
        fitted: dict[bool, tuple[float, Array, Array]] = {}
        chosen: list[int] = []
        while free and len(chosen) < n:
            turn = TURNS[self._turn % len(TURNS)]
            self._turn += 1
            if turn.speed not in fitted:
                y = -times[best] / seconds if turn.speed else np.log(seconds)
                model = self._models[turn.speed]
                model.fit(self._x[index], y)
                fitted[turn.speed] = float(y.min()), *model.predict(self._x)
            lowest, mean, deviation = fitted[turn.speed]
            if turn.hopeful:
                promise = HOPEFUL * deviation[free] - mean[free]
            else:
                promise = expected_gain(lowest, mean[free], deviation[free])
            if turn.near and not near.isdisjoint(free):
                promise = np.where([i in near for i in free], promise, -np.inf)
            chosen.append(free.pop(int(promise.argmax())))
        return chosen


def expected_gain(best: float, mean: Array, deviation: Array) -> Array:
    """Expected improvement below `best` of normal variables with these means and deviations."""
    import numpy as np

    z = (best - mean) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    gain: Array = deviation * (z * _normal_below(z) + density)
    return np.maximum(gain, 0.0)


def _normal_below(z: Array) -> Array:
    import numpy as np

    below: Sequence[float] = [0.5 * math.erfc(-v / math.sqrt(2)) for v in z]
    return np.array(below)


def make(name: str, space: Space, seed: int) -> Strategy:
    """`learned`."""
    return Learned(space, seed, name)
