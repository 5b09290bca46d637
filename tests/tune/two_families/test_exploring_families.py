"""A budgeted search over two families, whose knobs have nothing in common."""

from __future__ import annotations

import pytest

from tests.tune.conftest import World, only
from tests.tune.two_families.conftest import (
    SM80_DEFAULT,
    WAVE,
    WAVE_BEST,
    WAVE_DEFAULT,
    by_family,
    search,
)


@pytest.mark.parametrize("strategy", ["random", "learned", "exhaustive"])
def test_every_family_gets_its_turns_and_the_best_of_all_wins(world: World, strategy: str) -> None:
    one = only(search(world, strategy=strategy, measurements=14))
    assert (one.exploration.configs, one.exploration.scouted) == (44, 14)
    tried = by_family(a.subject for a in one.attempts)
    assert sorted(tried["wave"]) == sorted(WAVE), "a small family is not starved"
    assert len(tried["sm80"]) == 11
    assert one.decision.chosen.subject == WAVE_BEST


def test_the_default_of_each_family_is_measured_first_and_in_the_final(world: World) -> None:
    one = only(search(world, strategy="learned", measurements=5))
    assert {SM80_DEFAULT, WAVE_DEFAULT} <= {s.subject for s in one.decision.standings}
    assert {standing.family for standing in one.families} == {"sm80", "wave"}
