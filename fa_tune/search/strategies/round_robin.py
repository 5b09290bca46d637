"""One strategy per family, and turns between them: families have different knobs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from fa_tune.search.strategies.base import Observation, Space, Strategy

EQUAL_TURNS = 8  # proposals of each family before the fastest one is preferred
OTHERS_EVERY = 4  # then every so many-th proposal is another family's


class RoundRobin:
    """Proposes points of several spaces, numbered through in their order.

    Each has a strategy of its own.  First they take turns; then the family with the fastest
    point so far has three turns of four, and the others share the fourth.
    """

    def __init__(self, spaces: Sequence[Space], strategies: Sequence[Strategy]) -> None:
        self._strategies = list(strategies)
        self._ends = list(accumulate(map(len, spaces)))
        self._starts = [end - len(space) for end, space in zip(self._ends, spaces, strict=True)]
        self._proposed = [0] * len(spaces)
        self._fastest: tuple[float, int] | None = None
        self._turn = 0

    def propose(self, n: int) -> list[int]:
        chosen: list[int] = []
        done: set[int] = set()
        while len(chosen) < n and len(done) < len(self._strategies):
            which = self._next_family([i for i in range(len(self._strategies)) if i not in done])
            found = self._strategies[which].propose(1)
            if found:
                self._proposed[which] += 1
                chosen.append(self._starts[which] + found[0])
            else:
                done.add(which)
        return chosen

    def observe(self, observations: Sequence[Observation]) -> None:
        for which, strategy in enumerate(self._strategies):
            start, end = self._starts[which], self._ends[which]
            own = [o for o in observations if start <= o.index < end]
            for observation in own:
                if observation.time_s is not None:
                    found = observation.time_s, which
                    self._fastest = min(self._fastest or found, found)
            strategy.observe([Observation(o.index - start, o.time_s) for o in own])

    def _next_family(self, among: Sequence[int]) -> int:
        least = min(among, key=lambda i: (self._proposed[i], i))
        if self._proposed[least] < EQUAL_TURNS or self._fastest is None:
            return least
        self._turn += 1
        leading = self._fastest[1]
        others = [i for i in among if i != leading]
        if leading in among and (self._turn % OTHERS_EVERY or not others):
            return leading
        return min(others, key=lambda i: (self._proposed[i], i))
