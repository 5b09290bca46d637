"""Strategies that learn nothing: every point in order, or at random."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.search.strategies.base import Space, StrategyMemory


class InOrder(StrategyMemory):
    """`exhaustive` or `random`: proposes points in an order fixed beforehand."""

    def __init__(self, space: Space, seed: int, name: str) -> None:
        super().__init__(space, seed, name)
        self._order = list(space.by_soft_rules)
        if name == "random":
            self._order = list(range(len(space)))
            self.random.shuffle(self._order)

    def begin_with(self, indices: Sequence[int]) -> None:
        self._order = list(dict.fromkeys([*indices, *self._order]))

    def propose(self, n: int) -> list[int]:
        return self.take(self.free(self._order)[:n])
