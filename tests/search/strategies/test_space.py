"""Spaces as strategies see them: neighbourhoods, features, order."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.kernel_configs import parse_short_form
from fa_tune.search.strategies.base import Knob, Point, Space, knobs_of
from fa_tune.search.strategies.features import matrix


def grid(**axes: tuple[Knob, ...]) -> Space:
    """Every combination of the axes, keyed by its values."""
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    return Space(tuple(Point(",".join(map(str, p.values())), p) for p in points))


def around(space: Space, key: str) -> set[str]:
    index = [point.key for point in space.points].index(key)
    return {space.points[i].key for i in space.neighbours(index)}


def test_neighbours_are_one_step_away_in_one_knob() -> None:
    space = grid(a=(False, True), b=(16, 32, 64, 128), c=("x", "y"))
    assert around(space, "False,64,x") == {"True,64,x", "False,32,x", "False,128,x", "False,64,y"}


def test_zero_is_next_to_every_number() -> None:
    space = grid(tiles=(0, 1, 2, 4, 8))
    assert around(space, "0") == {"1", "2", "4", "8"}
    assert around(space, "2") == {"0", "1", "4"}


def test_short_lists_change_to_any_value() -> None:
    assert around(grid(n=(32, 64, 128)), "32") == {"64", "128"}


def test_knobs_tied_by_constraints_are_changed_together() -> None:
    tied = Space(tuple(Point(str(n), {"q": n, "k": n}) for n in (2, 4, 8)))
    assert around(tied, "2") == {"4", "8"}


def test_neighbourhood_is_mutual() -> None:
    space = grid(a=(False, True), b=(0, 2, 4, 8, 16), c=(1, 2, 3))
    for i in range(len(space)):
        assert i not in space.neighbours(i)
        assert all(i in space.neighbours(j) for j in space.neighbours(i))


def test_knobs_come_from_the_config_s_fields() -> None:
    config = parse_short_form("(FP16, 128, 64, 32, 4): async+eager+swizzled+load_2_2_2_tiles")
    knobs = knobs_of(config)
    assert list(knobs) == [f.name for f in dataclasses.fields(FlashForwardKernelConfig)]
    assert (knobs["dtype"], knobs["B_c"], knobs["swizzled"]) == ("FP16", 32, True)


def test_features_are_between_0_and_1_and_all_say_something() -> None:
    points = tuple(
        Point(
            str(i),
            {"same": 4, "flag": i % 2 == 0, "word": "ab"[i % 2], "tiles": (0, 2, 4)[i % 3]},
            {"bytes": 2**i, "same": 1} | ({"some": i} if i else {}),
            ("rule",) * (i == 3),
        )
        for i in range(6)
    )
    x, names = matrix(Space(points))
    # Soft rules follow from the knobs, and facts that some point lacks compare nothing.
    assert names == ["flag", "word=b", "tiles", "tiles=0", "fact bytes"]
    assert x.shape == (6, 5)
    assert x.min(axis=0).tolist() == [0.0] * 5
    assert x.max(axis=0).tolist() == [1.0] * 5
    assert x[:, 4].tolist() == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])  # logarithms


def test_a_space_of_one_point_has_features() -> None:
    x, _ = matrix(Space((Point("a", {"k": 1}),)))
    assert x.shape == (1, 1)


@pytest.mark.parametrize(
    ("points", "start", "message"),
    [
        ((), (), "at least one"),
        ((Point("a", {"k": 1}), Point("a", {"k": 2})), (), "a is in the space twice"),
        ((Point("a", {"k": 1}), Point("b", {"j": 2})), (), "b has other knobs than a"),
        ((Point("a", {"k": 1}),), (3,), "start point 3"),
    ],
)
def test_spaces_that_cannot_be_are_refused(
    points: tuple[Point, ...], start: tuple[int, ...], message: str
) -> None:
    with pytest.raises(InvalidConfig, match=message):
        Space(points, start)
