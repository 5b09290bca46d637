"""Configs as points: what a strategy may know of a config before it runs."""

from __future__ import annotations

from fa_tune import families
from fa_tune.core.model import Resources
from fa_tune.families.base import Config
from fa_tune.search.strategies import Point
from fa_tune.search.strategies.base import knobs_of


def point(config: Config, resources: Resources | None = None) -> Point:
    """A config with its knobs, what its cubin uses if it was compiled, and the soft rule that
    keeps it out of the tune set if there is one."""
    rule = families.of(config).tune_rejection(config)
    return Point(
        families.variant(config).key,
        knobs_of(config),
        tile_facts(config) | (facts(resources) if resources is not None else {}),
        (rule.constraint,) if rule is not None else (),
    )


def tile_facts(config: Config) -> dict[str, float]:
    """What a config's knobs say of its tile without naming it: the query rows, where no knob is
    their number."""
    if "B_r" in knobs_of(config):
        return {}
    return {"B_r": families.blocks(config)[0]}


def facts(used: Resources) -> dict[str, float]:
    """What a compiled kernel uses, as numbers; units are in the names."""
    return {
        "registers": used.registers,
        "spill_store_bytes": used.spill_store_bytes,
        "spill_load_bytes": used.spill_load_bytes,
        "stack_bytes": used.stack_bytes,
        "smem_bytes": used.static_smem_bytes + used.dynamic_smem_bytes,
        "threads": used.threads,
        "ctas_per_sm": used.ctas_per_sm,
        "warps_per_sm": used.ctas_per_sm * used.threads / 32,
    }
