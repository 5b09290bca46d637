"""Turns between families: each gets a chance, the fastest gets more."""

from __future__ import annotations

from fa_tune.search.strategies import Observation, Point, Space, create
from fa_tune.search.strategies.round_robin import EQUAL_TURNS, RoundRobin

SIZES = (40, 30)


def several(name: str = "random", seed: int = 1) -> RoundRobin:
    spaces = [
        Space(tuple(Point(f"{family}{i}", {family: i}) for i in range(n)))
        for family, n in zip("ab", SIZES, strict=True)
    ]
    return RoundRobin(spaces, [create(name, s, seed) for s in spaces])


def drive(strategy: RoundRobin, n: int, batch: int = 1) -> list[int]:
    """Points of the second family take half the time."""
    order: list[int] = []
    while len(order) < n and (found := strategy.propose(batch)):
        strategy.observe([Observation(i, 2.0 if i < SIZES[0] else 1.0) for i in found])
        order += found
    return order


def test_each_family_opens_and_then_the_fastest_has_three_turns_of_four() -> None:
    order = drive(several(), 2 * EQUAL_TURNS + 12)
    assert sum(i < SIZES[0] for i in order[: 2 * EQUAL_TURNS]) == EQUAL_TURNS
    assert sum(i < SIZES[0] for i in order[2 * EQUAL_TURNS :]) == 3


def test_every_point_of_every_family_is_proposed_once() -> None:
    order = drive(several("learned"), 100, batch=6)
    assert sorted(order) == list(range(sum(SIZES)))


def test_proposals_are_a_function_of_seed_and_observations() -> None:
    assert drive(several("learned"), 40, 4) == drive(several("learned"), 40, 4)


def test_failures_lead_nowhere_but_are_heard() -> None:
    strategy = several()
    strategy.observe([Observation(0, None), Observation(SIZES[0], None)])
    order = drive(strategy, 100, 3)
    assert sorted(order) == sorted({*range(sum(SIZES))} - {0, SIZES[0]})
