"""Local search: measure the neighbours of the best point, move when one is better."""

from __future__ import annotations

from collections.abc import Mapping

from fa_tune.search.strategies.base import Memory, Space, Strategy
from fa_tune.search.strategies.initial_design import worth_a_start

INITIAL_POINTS = 4  # start points and random ones before the first climb
INITIAL_WITHOUT_START = 8  # the same where no start point is known


class Local(Memory):
    """Climbs from the fastest of a few points.

    It begins with points worth a start (`initial_design`).  Neighbours come in random order.  Where
    none is better, the next climb starts two steps from the fastest point, and every other time
    from another point worth a start.
    """

    def __init__(self, space: Space, seed: int, name: str) -> None:
        super().__init__(space, seed, name)
        self._starts = worth_a_start(space)
        self._n_initial = INITIAL_POINTS if space.start else INITIAL_WITHOUT_START
        self._neighbours: dict[int, list[int]] = {}
        self._current: int | None = None
        self._restarts = 0

    def propose(self, n: int) -> list[int]:
        """Neighbours of the current point, or points to start from."""
        chosen: list[int] = []
        while len(chosen) < n and len(self.proposed) < len(self.space):
            chosen += self.take([self._next()])
        return chosen

    def _next(self) -> int:
        start = self.free(self.space.start)
        if start:
            return start[0]
        times = self.times
        if len(self.proposed) < self._n_initial or not times:
            return self._anywhere()
        if self._current is None:
            self._current = self._fastest(times)
        if self._current not in self.seen:  # a restart that has not been observed yet
            return self._anywhere()
        if self._current in times:
            around = [i for i in self._around(self._current) if i in times]
            self._current = self._fastest({i: times[i] for i in (self._current, *around)})
            free = self.free(self._around(self._current))
            if free:
                return free[0]
            if any(i not in self.seen for i in self._around(self._current)):
                return self._anywhere()
        return self._restart(times)

    def _restart(self, times: Mapping[int, float]) -> int:
        self._restarts += 1
        near = self._around(self._fastest(times))
        further = self.free(dict.fromkeys(j for i in near for j in self._around(i)))
        if self._restarts % 2 and further:
            self._current = self.random.choice(further)
        else:
            self._current = self._anywhere()
        return self._current

    @staticmethod
    def _fastest(times: Mapping[int, float]) -> int:
        return min(times, key=lambda i: (times[i], i))

    def _around(self, index: int) -> list[int]:
        if index not in self._neighbours:
            around = list(self.space.neighbours(index))
            self.random.shuffle(around)
            self._neighbours[index] = around
        return self._neighbours[index]

    def _anywhere(self) -> int:
        """A random free point of those worth a start, or of all once those are used up."""
        return self.random.choice(self.free(self._starts) or self.free())


def make(name: str, space: Space, seed: int) -> Strategy:
    """`local`."""
    return Local(space, seed, name)
