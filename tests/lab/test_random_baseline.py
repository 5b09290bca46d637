"""Random search, calculated: against enumeration and against drawing."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.lab.replay import best_after, draws_needed


@settings(deadline=None)  # 5040 orders take their time
@given(st.integers(1, 7), st.data())
def test_draws_needed_agrees_with_enumeration(n: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(1, n))
    probability = data.draw(st.sampled_from([0.1, 0.5, 0.9, 0.99]))
    orders = list(itertools.permutations(range(n)))
    first = sorted(1 + min(order.index(i) for i in range(good)) for order in orders)
    k = draws_needed(n, good, probability)
    assert k is not None
    assert sum(f <= k for f in first) >= probability * len(orders) - 1e-6
    assert sum(f <= k - 1 for f in first) < probability * len(orders) + 1e-6


@given(st.lists(st.one_of(st.none(), st.floats(1, 9)), min_size=1, max_size=6), st.data())
def test_best_after_agrees_with_enumeration(times: list[float | None], data: st.DataObject) -> None:
    draws = data.draw(st.integers(1, len(times)))
    probability = data.draw(st.sampled_from([0.3, 0.5, 0.9]))
    bests = sorted(
        min((math.inf if t is None else t for t in drawn), default=math.inf)
        for drawn in itertools.combinations(times, draws)
    )
    expected = bests[math.ceil(probability * len(bests) - 1e-6) - 1]
    assert best_after(times, draws, probability) == expected


def test_large_spaces_neither_overflow_nor_take_long() -> None:
    times = [1.0 + i for i in range(20_000)]
    assert draws_needed(20_000, 20, 0.9) == pytest.approx(2174, rel=0.01)
    assert best_after(times, 2174, 0.9) == pytest.approx(20.0, abs=1)
    assert draws_needed(10, 0, 0.5) is None
    assert draws_needed(10, 10, 0.9) == 1
    assert best_after([None, None], 2, 0.5) == math.inf
