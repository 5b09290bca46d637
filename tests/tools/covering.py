"""Covering arrays of strength two: a few configs with traits that together take every legal pair
of values of two knobs or traits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fa_tune.operations.traits import Traits

Value = Any  # a number, a flag, or an enum's member
Axes = Mapping[str, tuple[Value, ...]]
Point = tuple[Value, ...]
Pair = tuple[tuple[str, Value], tuple[str, Value]]
C = TypeVar("C")

# The others change a kernel in places of their own, and not all of them go together: they are in
# tests/kernels/test_score_traits.py and test_packed.py.
TRAIT_AXES: Axes = dict.fromkeys(("causal", "ragged", "lse"), (False, True))


@dataclass(frozen=True)
class Space(Generic[C]):
    """What to cover: the values of every knob, traits after them, and what can run.

    A knob of `follows` is not drawn but computed from the others, unless the pair to complete
    says what it is.  `tries` points without a legal one mean that there is none; of so many
    `candidates`, the one that covers most is taken.
    """

    config_class: type[C]
    axes: Axes
    runs: Callable[[C], bool]
    follows: Mapping[str, Callable[[Mapping[str, Value]], Value]] = field(default_factory=dict)
    tries: int = 200
    candidates: int = 60

    def split(self, point: Point) -> tuple[C, Traits]:
        """The config and the traits of a point."""
        values = dict(zip(self.axes, point, strict=True))
        traits = Traits(**{name: bool(values.pop(name)) for name in TRAIT_AXES})
        return self.config_class(**values), traits

    def _draft(self, values: Mapping[str, Value]) -> C:
        """A config with these values as they are, without the time that a check of each takes;
        the traits among them are in nobody's way."""
        draft = object.__new__(self.config_class)
        draft.__dict__.update(values)
        return draft

    def complete(self, pair: Pair, dice: random.Random) -> Point | None:
        """A random legal point with this pair in it; None when many tries find none."""
        fixed, bits = dict(pair), dice.getrandbits
        nothing_drawn = {name: fixed.get(name) for name in self.axes}
        free = [(name, values, len(values)) for name, values in self.axes.items()]
        free = [(*one, one[2].bit_length()) for one in free if one[0] not in fixed]
        for _ in range(self.tries):
            drawn = nothing_drawn.copy()
            for name, values, number, width in free:
                place = bits(width)  # as `dice.choice` draws it, in half the time
                while place >= number:
                    place = bits(width)
                drawn[name] = values[place]
            for name, value_of in self.follows.items():
                if name not in fixed:
                    drawn[name] = value_of(drawn)
            covered = all(drawn[name] in self.axes[name] for name in self.follows)
            if covered and self.runs(self._draft(drawn)):
                return tuple(drawn.values())
        return None


def covering_array(space: Space[C]) -> list[tuple[C, Traits]]:
    """Greedy, from a fixed seed, so always the same for the same space."""
    dice = random.Random(0)
    known = {p: point for p in _all_pairs(space.axes) if (point := space.complete(p, dice))}
    uncovered = set(known)
    chosen: list[Point] = []
    for first in sorted(known, key=str):
        if first not in uncovered:
            continue
        tries = (space.complete(first, dice) for _ in range(space.candidates))
        candidates = [point for point in tries if point is not None] or [known[first]]
        best = max(candidates, key=lambda point: len(uncovered & set(_pairs(space.axes, point))))
        uncovered -= set(_pairs(space.axes, best))
        chosen.append(best)
    return [space.split(point) for point in chosen]


def pairs_of(config: object, traits: Traits, names: Sequence[str]) -> set[Pair]:
    """The pairs of values that one config with its traits takes, of these knobs and traits."""
    values = [getattr(traits if name in TRAIT_AXES else config, name) for name in names]
    return set(itertools.combinations(zip(names, values, strict=True), 2))


def _all_pairs(axes: Axes) -> Iterator[Pair]:
    for (a, values_a), (b, values_b) in itertools.combinations(axes.items(), 2):
        for value_a, value_b in itertools.product(values_a, values_b):
            yield (a, value_a), (b, value_b)


def _pairs(axes: Axes, point: Point) -> Iterator[Pair]:
    return itertools.combinations(zip(axes, point, strict=True), 2)
