"""What is expected of a space's points from what was measured on other workloads.

A regression over each of the other tables says what a config like this one costs, relative to
the best there; where the very knobs were measured there, what the regression missed of them is
taken over as well.  It stays an expectation: `learned` begins with it and unlearns it.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fa_tune.search.strategies.base import Knob, Point, Space

FASTEST = 150  # of a table go into its regression, and as many random ones
# Fields that a workload decides and not the search: the same config has another value there.
OF_THE_WORKLOAD = frozenset({"dtype", "d_head"})


@dataclass(frozen=True)
class Prior:
    """What was measured on another workload of a GPU model: `times_s[i]` is point i's, None where
    it failed."""

    name: str
    points: tuple[Point, ...]
    times_s: tuple[float | None, ...]
    gpu: str = ""


def with_prior(space: Space, known: Sequence[Prior]) -> Space:
    """The space with what `known` lets one expect of its points; unchanged where none of them
    has its knobs.  A table may lack knobs that the space has: it is older than they are, and
    says the same of all their values."""
    fitting = [
        prior
        for prior in known
        if prior.points[0].knobs.keys() <= space.points[0].knobs.keys()
        and sum(t is not None for t in prior.times_s) > 1
    ]
    if not fitting:
        return space
    each = [_expected(space, prior) for prior in fitting]
    mean = tuple(math.fsum(values) / len(each) for values in zip(*each, strict=True))
    return dataclasses.replace(space, expected=mean)


def _expected(space: Space, prior: Prior) -> list[float]:
    """The logarithm of each point's time in multiples of the best one's, as `one` has it."""
    # Every search imports this module; numpy takes 0.1 s that only a regression has to wait for.
    import numpy as np

    from fa_tune.search.strategies.features import matrix
    from fa_tune.search.strategies.gaussian_process import GaussianProcess

    ran = [(i, t) for i, t in enumerate(prior.times_s) if t is not None]
    best = min(t for _, t in ran)
    order = sorted(ran, key=lambda pair: (pair[1], pair[0]))
    rest = order[FASTEST:]
    some = order[:FASTEST] + random.Random(prior.name).sample(rest, min(FASTEST, len(rest)))
    # One matrix for both, so that a column means the same in either.
    names = [name for name in prior.points[0].knobs if name not in OF_THE_WORKLOAD]
    both = tuple(
        Point(f"{where}:{point.key}", {name: point.knobs[name] for name in names}, point.facts)
        for where, points in (("there", prior.points), ("here", space.points))
        for point in points
    )
    x, _ = matrix(Space(both))
    there, here = x[: len(prior.points)], x[len(prior.points) :]
    model = GaussianProcess(x.shape[1])
    model.fit(there[[i for i, _ in some]], np.array([math.log(t / best) for _, t in some]))
    index = [i for i, _ in ran]
    missed = np.log([t / best for _, t in ran]) - model.predict(there[index])[0]
    by_knobs = {
        _values(prior.points[i], names): float(m) for i, m in zip(index, missed, strict=True)
    }
    predicted = model.predict(here)[0]
    return [
        float(value) + by_knobs.get(_values(point, names), 0.0)
        for value, point in zip(predicted, space.points, strict=True)
    ]


def _values(point: Point, names: Sequence[str]) -> tuple[Knob, ...]:
    return tuple(point.knobs[name] for name in names)
