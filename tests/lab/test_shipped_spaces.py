"""The recorded spaces that come with fa-tune, and what the strategies need on them."""

from __future__ import annotations

from functools import cache

import pytest

from fa_tune.core.paths import profiles_dir
from fa_tune.lab.replay import random_score, replay_strategies, score
from fa_tune.lab.space_table import RecordedWorkload, find, load, recorded
from fa_tune.lab.strategies import without_start

LARGE = 1000
SEEDS = 6


@cache
def large() -> dict[str, RecordedWorkload]:
    """Those of at least 1,000 configs, by the table's name."""
    tables = [load(path) for path in find([profiles_dir() / "nvidia_h200"])]
    spaces = {table.name: recorded(table)[0] for table in tables}
    return {name: one for name, one in spaces.items() if len(one.rows) >= LARGE}


NAMES = [
    *(f"sm80_d128_{w}" for w in ("512", "1024_causal", "4096", "8192_causal")),
    *(f"sm90_d128_{w}" for w in ("512", "1024_causal", "4096")),
]


def test_both_families_have_short_and_long_causal_and_not() -> None:
    assert sorted(large()) == sorted(NAMES)


@pytest.mark.parametrize("hidden", [False, True], ids=["default told", "default hidden"])
@pytest.mark.parametrize("name", NAMES)
def test_98_percent_of_the_best_is_found_within_60_measurements(name: str, hidden: bool) -> None:
    """Every seed; random search needs 200 to 1,080 measurements for nine tenths."""
    space = without_start(large()[name]) if hidden else large()[name]
    orders = replay_strategies(space, {"learned": SEEDS}, limit=60, batch=1, jobs=1)["learned"]
    chance = random_score(space, 60)
    found = score(space, "learned", orders, 60, chance)
    assert chance.needed[0.98][1] is not None
    assert chance.needed[0.98][1] >= 200
    assert found.needed[0.98][1] is not None
    if not hidden:
        assert found.needed[0.95][1] is not None
        assert found.needed[0.95][1] <= 25
        assert found.behind == ()
