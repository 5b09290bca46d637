"""What every strategy promises, whichever it is: the contract of propose and observe."""

from __future__ import annotations

import dataclasses
import importlib.util

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.search.strategies import STRATEGIES, Observation, Point, Space, create
from fa_tune.search.strategies.base import Knob
from fa_tune.search.strategies.surrogate import INITIAL_POINTS
from tests.synthetic_spaces import space as synthetic

NEEDS = {"optuna-tpe": ("optuna",), "optuna-gp": ("optuna", "scipy")}


def _installed(name: str) -> bool:
    return all(importlib.util.find_spec(package) for package in NEEDS.get(name, ()))


ALL = [
    pytest.param(name, marks=pytest.mark.skipif(not _installed(name), reason="not installed"))
    for name in STRATEGIES
]


def small(n: int = 60, start: tuple[int, ...] = ()) -> Space:
    """A space with a switch, a word, a list of numbers with 0, and facts."""
    points = []
    for i in range(n):
        tiles = (0, 2, 4, 8, 16)[i // 12]
        knobs: dict[str, Knob] = {"flag": bool(i % 2), "word": "abc"[i % 3], "tiles": tiles}
        rules = ("a_rule",) if i % 7 == 0 else ()
        points.append(Point(f"v{i}", knobs | {"id": i % 12}, {"registers": 32 + i}, rules))
    return Space(tuple(points), start)


def time_of(index: int) -> float | None:
    """A time for every point of `small`, and failures."""
    return None if index % 11 == 10 else 1e-3 * (1 + abs(index - 37) / 10 + (index % 2) / 5)


def drive(name: str, space: Space, seed: int, batches: list[int]) -> list[int]:
    strategy = create(name, space, seed)
    order: list[int] = []
    for n in batches:
        indices = strategy.propose(n)
        strategy.observe([Observation(i, time_of(i)) for i in indices])
        order += indices
    return order


@pytest.mark.parametrize("name", ALL)
def test_every_point_is_proposed_once_and_none_is_left(name: str) -> None:
    order = drive(name, small(36), 1, [7] * 6)
    assert sorted(order) == list(range(36))
    assert create(name, small(1), 0).propose(5) == [0]


@pytest.mark.parametrize("name", ALL)
def test_same_seed_and_observations_same_proposals(name: str) -> None:
    assert drive(name, small(), 3, [4] * 6) == drive(name, small(), 3, [4] * 6)


@pytest.mark.parametrize("name", [p for p in ALL if p.values[0] != "exhaustive"])
def test_the_seed_matters(name: str) -> None:
    first = drive(name, small(), 0, [4] * 5)
    assert any(drive(name, small(), seed, [4] * 5) != first for seed in range(1, 5))


@pytest.mark.parametrize("name", [p for p in ALL if p.values[0] != "random"])
def test_start_points_come_first(name: str) -> None:
    assert drive(name, small(start=(42, 5)), 0, [1, 1, 4])[:2] == [42, 5]


@pytest.mark.parametrize("name", ALL)
def test_what_was_measured_before_is_not_proposed(name: str) -> None:
    strategy = create(name, small(), 0)
    strategy.observe([Observation(i, time_of(i)) for i in range(50)])
    assert sorted(strategy.propose(60)) == list(range(50, 60))


@pytest.mark.parametrize("name", ALL)
def test_a_space_where_everything_fails_is_exhausted(name: str) -> None:
    strategy = create(name, small(12), 0)
    seen: list[int] = []
    while found := strategy.propose(3):
        strategy.observe([Observation(i, None) for i in found])
        seen += found
    assert sorted(seen) == list(range(12))


@pytest.mark.parametrize("name", ALL)
def test_batches_may_be_proposed_before_anything_is_observed(name: str) -> None:
    strategy = create(name, small(), 0)
    first = strategy.propose(9) + strategy.propose(9)
    assert len(set(first)) == 18


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["exhaustive", "random", "learned"]), st.integers(0, 99),
       st.lists(st.integers(1, 9), min_size=1, max_size=8))  # fmt: skip
def test_batch_sizes_are_kept(name: str, seed: int, batches: list[int]) -> None:
    strategy = create(name, small(), seed)
    left = 60
    for n in batches:
        found = strategy.propose(n)
        assert len(found) == min(n, left)
        left -= len(found)
        strategy.observe([Observation(i, time_of(i)) for i in found])


OWN = ["exhaustive", "random", "learned"]


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(OWN), st.integers(0, 9), st.data())
def test_how_observations_are_handed_over_changes_nothing(
    name: str, seed: int, data: st.DataObject
) -> None:
    """A search that was killed hears everything of its journal, in whatever portions; what it
    proposes next is what it would have proposed."""
    space = filled() if data.draw(st.booleans(), label="facts") else small(start=(20,))
    told, retold = create(name, space, seed), create(name, space, seed)
    batches = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    for n in batches:
        indices = told.propose(n)
        assert retold.propose(n) == indices
        found = [Observation(i, time_of(i)) for i in indices]
        told.observe(found)
        at = data.draw(st.integers(0, n))
        for portion in (found[at:], found[:at]):
            retold.observe(portion)


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(OWN), st.integers(0, 9), st.data())
def test_nothing_is_proposed_twice_whatever_is_observed(
    name: str, seed: int, data: st.DataObject
) -> None:
    """Observations may come late, never, of points that nobody proposed, and be failures."""
    space = filled() if data.draw(st.booleans(), label="facts") else small()
    strategy = create(name, space, seed)
    seen: set[int] = set()
    for _ in range(data.draw(st.integers(1, 6))):
        found = strategy.propose(data.draw(st.integers(0, 8)))
        assert len(set(found)) == len(found)
        assert seen.isdisjoint(found)
        assert all(0 <= i < len(space) for i in found)
        seen.update(found)
        others = data.draw(st.lists(st.integers(0, len(space) - 1), max_size=4))
        late = [i for i in found if data.draw(st.booleans())]
        times = st.one_of(st.none(), st.floats(1e-6, 1e3))
        strategy.observe([Observation(i, data.draw(times)) for i in dict.fromkeys(late + others)])
        seen.update(others)


def test_exhaustive_takes_what_soft_rules_like_first() -> None:
    space = small(start=(7,))
    order = drive("exhaustive", space, 0, [60])
    objections = [len(space.points[i].soft_rules) for i in order]
    assert order[0] == 7
    assert objections[1:] == sorted(objections[1:])


def filled() -> Space:
    """`small`, where points fill a multiprocessor the more the higher their number."""
    points = [
        dataclasses.replace(
            point, facts={"registers_resident": 1000 + i, "smem_resident_bytes": 9 * i}
        )
        for i, point in enumerate(small().points)
    ]
    return Space(tuple(points))


def test_learned_opens_with_what_fills_a_multiprocessor() -> None:
    openings = {
        tuple(create("learned", filled(), seed).propose(INITIAL_POINTS)) for seed in range(8)
    }
    assert len(openings) > 1
    assert all(index >= 45 for opening in openings for index in opening)


def test_learned_opens_with_what_soft_rules_like_where_nothing_else_is_known() -> None:
    space = small()
    opening = create("learned", space, 0).propose(INITIAL_POINTS)
    assert not any(space.points[i].soft_rules for i in opening)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown strategy 'magic'; there are exhaustive"):
        create("magic", small(), 0)


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    with pytest.raises(ToolMissing, match="Optuna is not installed"):
        create("optuna-tpe", small(), 0)


def test_98_percent_of_the_best_is_found_early_in_a_large_space() -> None:
    """Random search needs 560 measurements for this in nine of ten tries."""
    space, times = synthetic(4096)
    best = min(t for t in times if t is not None)
    plain = Space(space.points)  # without being told the default
    for seed in range(3):
        strategy = create("learned", plain, seed)
        found, n = 0.0, 0
        while found < 0.98:
            n += 1
            assert n <= 60, f"seed {seed}: {found:.3f} after {n}"
            (index,) = strategy.propose(1)
            time = times[index]
            strategy.observe([Observation(index, time)])
            found = max(found, 0.0 if time is None else best / time)
