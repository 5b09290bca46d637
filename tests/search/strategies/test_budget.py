"""What a budget says, and how it is spent; what an audit says of what was skipped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.errors import InvalidConfig
from fa_tune.search.strategies import Observation, Point, Space, create
from fa_tune.search.strategies.audit import Audit, judge, sample, upper_share
from fa_tune.search.strategies.budget import Budget, spend

SPACE = Space(tuple(Point(str(i), {"n": i}) for i in range(40)))


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("60", Budget(60)),
        ("300s", Budget(None, 300.0)),
        ("2.5s", Budget(None, 2.5)),
        ("60,300s", Budget(60, 300.0)),
        (" 60, 300 ", Budget(60, 300.0)),
    ],
)
def test_budgets_are_read(text: str, budget: Budget) -> None:
    assert Budget.parse(text) == budget


@pytest.mark.parametrize("text", ["", "0", "0s", "5,0s", "-3", "many", ",5s", "5,", "5s,3", "1e3"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig, match="budget"):
        Budget.parse(text)


def test_budgets_are_named() -> None:
    assert str(Budget(60, 2.5)) == "60 measurements or 2.5 s"
    assert str(Budget()) == "no limit"


def _measure(indices: Sequence[int]) -> list[Observation]:
    return [Observation(i, 1.0 + i) for i in indices]


def test_measurements_are_counted_exactly() -> None:
    found = spend(create("exhaustive", SPACE, 0), Budget(10), _measure, batch=4)
    assert [o.index for o in found] == list(range(10))
    assert len(spend(create("random", SPACE, 0), Budget(), _measure)) == 40


def test_seconds_end_it_before_the_next_batch() -> None:
    now = iter(range(0, 1000, 3))
    found = spend(
        create("exhaustive", SPACE, 0), Budget(30, 10.0), _measure, batch=2, clock=lambda: next(now)
    )
    assert len(found) == 6  # at 3, 6 and 9 seconds


def test_audit_draws_the_same_points_for_the_same_seed() -> None:
    skipped = range(5, 40)
    assert sample(skipped, 8, 1) == sample(reversed(skipped), 8, 1) != sample(skipped, 8, 2)
    assert sample([3, 1], 8, 0) == [1, 3]
    assert set(sample(skipped, 8, 3)) <= set(skipped)


def test_regret_is_the_time_that_the_fastest_audited_point_saves() -> None:
    audit = judge(2.0, {"a": 3.0, "b": 1.9, "c": None, "d": 1.8}, 100)
    assert (audit.measured, audit.failed, audit.faster, audit.fastest) == (4, 1, 2, "d")
    assert audit.regret == pytest.approx(0.1)
    assert "d, takes 10.00 % less time" in audit.sentence
    assert judge(1.0, {"a": 3.0}, 9).regret == 0.0
    assert "none is faster" in judge(1.0, {"a": 3.0}, 9).sentence
    assert judge(1.0, {"a": None}, 9).regret == 0.0
    assert "nothing was skipped" in Audit(0, 0, 0, 0, 0.0, "", 0.0).sentence


def test_upper_share_is_the_exact_hypergeometric_bound() -> None:
    # 20 of 1000 without a hit: with 134 hits in the population that has probability > 5 %, with
    # 135 or so it has not.
    bound = round(1000 * upper_share(1000, 20, 0))
    assert math.comb(1000 - bound, 20) / math.comb(1000, 20) >= 0.05
    assert math.comb(999 - bound, 20) / math.comb(1000, 20) < 0.05
    assert upper_share(10, 10, 3) == 0.3
    assert upper_share(10, 0, 0) == 1.0


@given(st.integers(1, 120), st.data())
def test_the_bound_of_an_audit_holds_in_19_of_20_audits(
    population: int, data: st.DataObject
) -> None:
    """Whatever share of the skipped is faster: exactly, over all samples that can be drawn."""
    drawn = data.draw(st.integers(1, population))
    faster = data.draw(st.integers(0, population))
    possible = range(max(0, drawn - (population - faster)), min(drawn, faster) + 1)
    covered = sum(
        math.comb(faster, hits) * math.comb(population - faster, drawn - hits)
        for hits in possible
        if upper_share(population, drawn, hits) >= faster / population - 1e-12
    )
    assert covered / math.comb(population, drawn) >= 0.95 - 1e-12


@given(
    st.lists(st.one_of(st.none(), st.floats(0.1, 10)), min_size=1, max_size=30), st.integers(0, 99)
)
def test_an_audit_of_everything_is_the_true_regret(times: list[float | None], seed: int) -> None:
    """And one of a sample is never more than that."""
    keyed = {str(i): t for i, t in enumerate(times)}
    fastest = min((t for t in times if t is not None), default=math.inf)
    truth = max(0.0, 1.0 - fastest / 1.0) if fastest < 1.0 else 0.0
    whole = judge(1.0, keyed, len(times))
    assert whole.regret == pytest.approx(truth)
    assert whole.faster == sum(t is not None and t < 1.0 for t in times)
    some = [str(i) for i in sample(range(len(times)), 5, seed)]
    part = judge(1.0, {key: keyed[key] for key in some}, len(times))
    assert part.regret <= whole.regret + 1e-12
    assert part.failed + part.faster <= part.measured == min(5, len(times))
