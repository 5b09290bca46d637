"""What the defaults were: recordings of that time hold no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from fa_tune.families.sm90.config import Sm90Config
from fa_tune.families.sm90.sets import default_config


class Change(NamedTuple):
    """Defaults that it `concerns` had `other` values of these fields."""

    concerns: Callable[[Sm90Config], bool]
    other: Mapping[str, Any]


# The last first: a new default is one more, in front, under the date of the last recording
# without it.
CHANGES = (
    # 2026-11-23
    Change(
        lambda c: max(c.d_head, c.d_v) > 128 and c.q_stages > 1,
        {"B_c": 96, "q_stages": 1, "cross_tile_overlap": False},
    ),
    Change(
        lambda c: c.d_head == 64 and c.adaptive_max,
        {"early_test_wait": True, "single_loop": True},
    ),
    Change(lambda c: c.d_head == 64 and c.adaptive_max, {"adaptive_max": False}),
    Change(
        lambda c: c.d_head == 128 and c.adaptive_max,
        {"adaptive_max": False, "rows_in_turn": False},
    ),
)


# The same of a default that is one for some sizes and windows alone.
CHANGES_BY_SHAPE = (
    # 2026-11-23
    Change(
        lambda c: c.d_head == 256 and c.adaptive_max,
        {"adaptive_max": False, "single_loop": True},
    ),
)


def former_defaults(config: Sm90Config) -> list[Sm90Config]:
    """What was the default before this one, the last first."""
    found = []
    usual = default_config(config.d_head, config.dtype, d_head_v=config.d_head_v)
    if config != usual:  # until 2026-11-23 sizes and windows made no difference
        found += [replace(config, **c.other) for c in CHANGES_BY_SHAPE if c.concerns(config)]
        found.append(usual)
    before = usual
    for change in CHANGES:
        if change.concerns(before):
            before = replace(before, **change.other)
            found.append(before)
    return found
