"""What other workloads say of a space, and what `learned` makes of it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.search.strategies import Observation, Point, Space, create
from fa_tune.search.strategies.transfer import Prior, with_prior

N = 80


def points(d_head: int = 128) -> tuple[Point, ...]:
    return tuple(
        Point(f"{d_head}:{i}", {"d_head": d_head, "n": i % 20, "flag": i // 20 % 2 == 0, "m": i})
        for i in range(N)
    )


def time_of(index: int, best: int = 50) -> float:
    """Smooth, but for one config that no model would guess."""
    return 0.9 if index == 7 else 1.0 + abs(index - best) / 20


def known(times: list[float | None] | None = None) -> Prior:
    return Prior("other", points(64), tuple(times or [3.0 * time_of(i) for i in range(N)]))


def test_the_same_config_elsewhere_is_expected_to_take_as_long_here() -> None:
    """Also where it is an exception, and whatever field only says the workload."""
    space = with_prior(Space(points()), [known()])
    assert min(range(N), key=lambda i: space.expected[i]) == 7
    for i in range(N):
        assert space.expected[i] == pytest.approx(math.log(time_of(i) / 0.9), abs=1e-6)


def test_several_workloads_have_equal_weight() -> None:
    slow = [1.0] * (N - 1) + [2.0]
    space = with_prior(Space(points()), [known(), known(list(slow))])
    assert space.expected[7] == pytest.approx(0.0, abs=1e-6)
    assert space.expected[N - 1] == pytest.approx(
        (math.log(time_of(N - 1) / 0.9) + math.log(2.0)) / 2, abs=1e-6
    )


def test_a_config_that_failed_elsewhere_is_only_guessed() -> None:
    times: list[float | None] = [time_of(i) for i in range(N)]
    times[7] = None
    space = with_prior(Space(points()), [known(times)])
    assert space.expected[7] > math.log(1.5)


def test_other_knobs_say_nothing() -> None:
    other = Prior("gemm", tuple(Point(str(i), {"tile": i}) for i in range(4)), (1.0,) * 4)
    space = Space(points())
    assert with_prior(space, [other]) is space
    assert with_prior(space, []) is space
    assert with_prior(space, [known([None] * N)]) is space


def test_a_table_older_than_a_knob_says_the_same_of_all_its_values() -> None:
    newer = tuple(
        Point(f"{point.key} {new}", {**point.knobs, "new": new})
        for point in points()
        for new in (0, 1)
    )
    space = with_prior(Space(newer), [known()])
    for i in range(N):
        for value in space.expected[2 * i : 2 * i + 2]:
            assert value == pytest.approx(math.log(time_of(i) / 0.9), abs=1e-6)
    older = [Point(p.key, {"n": p.knobs["n"]}) for p in points()[:20]]
    assert with_prior(Space(tuple(older)), [known()]).expected == ()


def test_expectations_are_of_every_point() -> None:
    with pytest.raises(InvalidConfig, match="1 expectations of 80 points"):
        Space(points(), expected=(0.0,))


def order(space: Space, best: int, n: int) -> list[int]:
    strategy = create("learned", space, 0)
    found: list[int] = []
    for _ in range(n):
        (index,) = strategy.propose(1)
        strategy.observe([Observation(index, time_of(index, best) + 0.5 * (index == 7))])
        found.append(index)
    return found


def test_learned_begins_with_what_is_expected_and_after_the_default() -> None:
    space = with_prior(Space(points(), start=(70,)), [known()])
    strategy = create("learned", space, 3)
    assert strategy.propose(3) == [70, 7, 50]


def test_learned_unlearns_what_does_not_hold_here() -> None:
    """The best is elsewhere, and the exception is none."""
    space = with_prior(Space(points()), [known()])
    assert 20 in order(space, 20, 20)


def test_the_same_experience_gives_the_same_proposals() -> None:
    one = with_prior(Space(points()), [known()])
    two = with_prior(Space(points()), [dataclasses.replace(known())])
    assert one.expected == two.expected
    assert order(one, 40, 15) == order(two, 40, 15)
