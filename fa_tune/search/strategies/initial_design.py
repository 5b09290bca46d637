"""Which points are worth a start before anything was measured."""

from __future__ import annotations

import bisect
import math

from fa_tune.search.strategies.base import Space

RESIDENT = ("registers_resident", "smem_resident_bytes")  # of `derived_features`
FULLEST = 0.25  # of the space


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
