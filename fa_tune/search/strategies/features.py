"""Points as numbers, for strategies that fit a model.

Numbers that are all positive and span a factor are taken by their logarithm; 0 among other
numbers ("all", "off") is a switch of its own; words become one switch per word; what does not
vary is left out.  Every column is scaled to [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fa_tune.search.strategies.base import Knob, Space

Columns = dict[str, list[float]]


def matrix(space: Space) -> tuple[NDArray[np.float64], list[str]]:
    """One row per point, one column per feature in [0, 1], and the columns' names.

    Facts that some point lacks are left out, as are columns equal to another one.
    """
    columns: Columns = {}
    for name in space.values:
        columns |= _knob(name, [point.knobs[name] for point in space.points])
    for name in space.points[0].facts:
        values = [point.facts.get(name) for point in space.points]
        if all(v is not None for v in values):
            columns[f"fact {name}"] = _scaled([float(v) for v in values if v is not None])
    kept: Columns = {}
    seen: set[tuple[float, ...]] = set()
    for name, column in columns.items():
        low, high = min(column), max(column)
        if high > low:
            unit = tuple((v - low) / (high - low) for v in column)
            if unit not in seen:
                seen.add(unit)
                kept[name] = list(unit)
    if not kept:
        return np.zeros((len(space), 1)), ["nothing varies"]
    return np.array(list(kept.values()), dtype=np.float64).T, list(kept)


def _knob(name: str, values: Sequence[Knob]) -> Columns:
    if any(isinstance(v, str) for v in values):
        words = sorted({str(v) for v in values})
        return {f"{name}={word}": [float(str(v) == word) for v in values] for word in words}
    numbers = [float(v) for v in values]
    if set(numbers) <= {0.0, 1.0}:
        return {name: numbers}
    if 0.0 not in numbers:
        return {name: _scaled(numbers)}
    others = [v for v in numbers if v != 0.0]
    middle = sum(_scaled(others)) / len(others)
    by_value = dict(zip(others, _scaled(others), strict=True))
    return {
        name: [by_value.get(v, middle) for v in numbers],
        f"{name}=0": [float(v == 0.0) for v in numbers],
    }


def _scaled(values: Sequence[float]) -> list[float]:
    low, high = min(values), max(values)
    if low > 0 and high >= 2 * low:
        return [math.log(v) for v in values]
    if low >= 0 and high > 100:  # bytes that may be none
        return [math.log1p(v) for v in values]
    return [float(v) for v in values]
