"""A space as strategies see it: points with knobs and static facts, whatever the family.

A strategy works with indices into `Space.points`.  It is told of every outcome, failures
included, and never proposes a point twice.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

from fa_tune.core.errors import InvalidConfig

Knob = bool | int | float | str
FEW_VALUES = 3  # a number with at most so many values may change to any of them in one step


@dataclass(frozen=True)
class Point:
    """One config: `key` is the variant's, `knobs` its fields, `facts` what is known before it
    runs (registers, bytes, …; units are in the names), `soft_rules` the names of the rules
    that think little of it."""

    key: str
    knobs: Mapping[str, Knob]
    facts: Mapping[str, float] = field(default_factory=dict)
    soft_rules: tuple[str, ...] = ()


@dataclass(frozen=True)
class Observation:
    """What became of a point: seconds, or None where it failed."""

    index: int
    time_s: float | None


class Strategy(Protocol):
    """The one interface of all strategies."""

    def propose(self, n: int) -> list[int]:
        """Up to `n` points not proposed before, in the order to measure them; fewer only when
        the space is exhausted."""

    def observe(self, observations: Sequence[Observation]) -> None:
        """Learn of outcomes, also of points that were not proposed (from a journal)."""


@dataclass(frozen=True)
class Space:
    """All points that may be measured.  `start` are indices worth measuring first, the default
    config above all.  `expected` is what other workloads let one expect of each point, the
    logarithm of its time in multiples of the best; empty: nothing.  Raises InvalidConfig
    without points, for keys that repeat and for points with different knobs."""

    points: tuple[Point, ...]
    start: tuple[int, ...] = ()
    expected: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.points:
            raise InvalidConfig("a space needs at least one point")
        names = list(self.points[0].knobs)
        seen: set[str] = set()
        for point in self.points:
            if point.key in seen:
                raise InvalidConfig(f"{point.key} is in the space twice")
            if list(point.knobs) != names:
                raise InvalidConfig(f"{point.key} has other knobs than {self.points[0].key}")
            seen.add(point.key)
        if self.expected and len(self.expected) != len(self.points):
            raise InvalidConfig(f"{len(self.expected)} expectations of {len(self.points)} points")
        for index in self.start:
            if not 0 <= index < len(self.points):
                raise InvalidConfig(f"start point {index} is not in the space")

    def __len__(self) -> int:
        return len(self.points)

    @cached_property
    def values(self) -> Mapping[str, tuple[Knob, ...]]:
        """Every knob's values in this space, sorted; only knobs that vary."""
        found = {
            name: {point.knobs[name] for point in self.points} for name in self.points[0].knobs
        }
        return {
            name: tuple(sorted(kinds, key=_sort_key))
            for name, kinds in found.items()
            if len(kinds) > 1
        }

    @cached_property
    def vectors(self) -> tuple[tuple[int, ...], ...]:
        """Each point as the positions of its values in `values`."""
        ranks = {n: {v: i for i, v in enumerate(values)} for n, values in self.values.items()}
        return tuple(
            tuple(rank[point.knobs[name]] for name, rank in ranks.items()) for point in self.points
        )

    @cached_property
    def by_soft_rules(self) -> tuple[int, ...]:
        """All indices: start points, then those that fewest soft rules object to, in order."""
        first = dict.fromkeys(self.start)
        rest = sorted(range(len(self)), key=lambda i: len(self.points[i].soft_rules))
        return tuple(first | dict.fromkeys(rest))

    def steps(self, name: str, value: Knob) -> tuple[Knob, ...]:
        """The values one step from `value`: any other for switches, words and short lists, the
        next ones for longer lists of numbers.  0, which stands for "all" or "off" among
        numbers of tiles and stages, is next to every number."""
        values = self.values[name]
        others = tuple(v for v in values if v != value)
        if len(values) <= FEW_VALUES or isinstance(value, bool | str) or value == 0:
            return others
        ordered = [v for v in values if v != 0]
        at = ordered.index(value)
        near = ordered[max(0, at - 1) : at] + ordered[at + 1 : at + 2]
        return tuple(v for v in others if v in near or v == 0)

    def neighbours(self, index: int) -> tuple[int, ...]:
        """The points one step away in one knob.  Where constraints tie knobs together and there
        is none, those one step away in two."""
        knobs = self.points[index].knobs
        steps = [(n, v) for n in self.values for v in self.steps(n, knobs[n])]
        single = self._present(knobs, ({n: v} for n, v in steps))
        if single:
            return single
        return self._present(knobs, ({a: x, b: y} for a, x in steps for b, y in steps if a < b))

    def _present(
        self, knobs: Mapping[str, Knob], changes: Iterable[Mapping[str, Knob]]
    ) -> tuple[int, ...]:
        found = (self._by_knobs.get(tuple((dict(knobs) | dict(c)).values())) for c in changes)
        return tuple(dict.fromkeys(i for i in found if i is not None))

    @cached_property
    def _by_knobs(self) -> Mapping[tuple[Knob, ...], int]:
        return {tuple(point.knobs.values()): i for i, point in enumerate(self.points)}


class StrategyMemory:
    """What every strategy keeps: what was proposed, what became of it, and its own dice."""

    def __init__(self, space: Space, seed: int, name: str) -> None:
        self.space = space
        self.proposed: dict[int, None] = {}
        self.seen: dict[int, float | None] = {}  # index → seconds, None: failed
        self.random = random.Random(f"{name}:{seed}")

    def observe(self, observations: Sequence[Observation]) -> None:
        """Remember; what was measured need not be proposed."""
        for observation in observations:
            self.seen[observation.index] = observation.time_s
            self.proposed.setdefault(observation.index)

    def free(self, indices: Iterable[int] | None = None) -> list[int]:
        """Indices of `indices` (or all) that were neither proposed nor observed."""
        among = range(len(self.space)) if indices is None else indices
        return [i for i in among if i not in self.proposed]

    def take(self, indices: Iterable[int]) -> list[int]:
        """Mark as proposed, and give back."""
        chosen = list(indices)
        self.proposed.update(dict.fromkeys(chosen))
        return chosen

    @property
    def times(self) -> dict[int, float]:
        """Seconds of the points that ran."""
        return {i: t for i, t in self.seen.items() if t is not None}


def knobs_of(config: Any) -> dict[str, Knob]:
    """The knobs of a family's config, a dataclass: its fields in order, enumerations by name."""
    knobs: dict[str, Knob] = {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        knobs[f.name] = value.name if isinstance(value, Enum) else value
    return knobs


def _sort_key(value: Knob) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, float(value), "")
