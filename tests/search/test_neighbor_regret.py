"""How far a config falls behind on workloads nearby."""

from __future__ import annotations

import math

import pytest

from fa_tune.core.model import Measurement
from fa_tune.core.stats import MARGIN
from fa_tune.search.neighbor_regret import Neighbour, neighbour, regret_bucket


def measured(**times: float) -> list[Measurement]:
    return [Measurement(name, "w", "events", (t, t * 1.001), {}, {}) for name, t in times.items()]


def test_regret_is_the_time_above_the_leaders() -> None:
    found = neighbour(measured(a=1.0, b=1.05, c=3.0))
    assert found is not None
    assert {s: pytest.approx(r) for s, r in found.regrets.items()} == {"a": 0.0, "b": 0.05, "c": 2}
    assert found.regret("not there") == math.inf
    near = [Neighbour({"a": 0.0, "b": 0.05}), Neighbour({"a": 0.03}, unknown=0.1)]
    assert regret_bucket("a", near) == 2
    assert regret_bucket("b", near) == 4
    assert regret_bucket("a", []) == 0


@pytest.mark.parametrize(
    ("regret", "steps"),
    [
        (0.0, 0),
        (0.99 * MARGIN, 0),
        (1.01 * MARGIN, 1),
        (1.99 * MARGIN, 1),
        (2.01 * MARGIN, 2),
        (4.01 * MARGIN, 3),
        (1e9, 20),
        (math.inf, 20),
    ],
)
def test_steps_are_coarse(regret: float, steps: int) -> None:
    assert regret_bucket("a", [Neighbour({"a": regret})]) == steps
