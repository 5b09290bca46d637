"""Recorded rows with the names that their family gives its configs and knobs today.

A space is searched together with configs of today, and what was recorded of one is looked up by
variant and by knob.  A config whose knob was removed cannot be written any more: its row is left
out.
"""

from __future__ import annotations

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Variant
from fa_tune.search.strategies.base import Knob, knobs_of
from fa_tune.search.strategies.points import tile_facts


def present_key(key: str) -> str | None:
    """A variant's key as its family writes it today; None if it no longer can, and the key itself
    if no family knows it."""
    try:
        recorded = Variant.from_key(key)
        family = families.get(recorded.family)
    except (InvalidConfig, ValueError):
        return key
    if not family.recognises(recorded.config):
        return key
    now = families.canonical(recorded)
    if now != recorded:
        return now.key
    try:
        family.parse(recorded.config)
    except InvalidConfig:
        return None
    return key


def present_words(key: str) -> tuple[dict[str, Knob], dict[str, float]]:
    """Knobs and facts that a variant's key of today says of it; nothing of one that no family
    knows."""
    try:
        config = families.config_of(Variant.from_key(key))
    except (InvalidConfig, ValueError):
        return {}, {}
    return knobs_of(config), tile_facts(config)
