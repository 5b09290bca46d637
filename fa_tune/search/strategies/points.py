"""Configs as points: what a strategy may know of a config before it runs, also of its cubin, and
what follows from these and the workload.

A kernel of blocks computes whole blocks: at 512 keys, blocks of 112 compute 560.  No regression
on the block size can know that it is the remainder that costs, and none has to: it is counted
here.  The same goes for what is resident on a multiprocessor, a product of three facts.
"""

from __future__ import annotations

from collections.abc import Mapping

from fa_tune import families, operations
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Resources
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.operations.memory import memory_rate
from fa_tune.search.strategies import Point
from fa_tune.search.strategies.base import Knob, knobs_of


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


def with_derived(
    knobs: Mapping[str, Knob], facts: Mapping[str, float], workload: Workload | None
) -> dict[str, float]:
    """`facts` and what follows from them, as far as it does:

    registers_resident, smem_resident_bytes     of all CTAs on one multiprocessor
    computed_pairs                              query–key pairs computed per pair that attends
    scores_per_cta                              of one block of queries and one of keys
    rows_per_thread                             rows of a block of queries
    ctas_per_slot                               how many CTAs there are per one that is resident

    The query rows of a block are the knob `B_r` or, of a family whose other knobs say how many
    they are, the fact of that name.
    """
    found = dict(facts)
    if {"registers", "threads", "ctas_per_sm"} <= facts.keys():
        found["registers_resident"] = facts["registers"] * facts["threads"] * facts["ctas_per_sm"]
    if {"smem_bytes", "ctas_per_sm"} <= facts.keys():
        found["smem_resident_bytes"] = facts["smem_bytes"] * facts["ctas_per_sm"]
    rows, columns = _size(knobs.get("B_r", facts.get("B_r"))), _size(knobs.get("B_c"))
    if workload is None or rows is None or columns is None:
        return found
    found["scores_per_cta"] = rows * columns
    operation = operations.get(workload.op)
    if pairs := operation.unmasked_pairs(workload):
        tiles = operation.visited_tiles(workload, rows, columns)
        found["computed_pairs"] = tiles * rows * columns / pairs
    if facts.get("threads"):
        found["rows_per_thread"] = rows / facts["threads"]
    if facts.get("ctas_per_sm"):
        ctas = workload.batch * workload.heads * -(-workload.seq_len_q // rows)
        found["ctas_per_slot"] = ctas / facts["ctas_per_sm"]
    return found


def workload_of(key: str) -> Workload | None:
    """The workload of a key; None for what is no key of ours (a table of another tuner)."""
    try:
        return Workload.from_key(key)
    except InvalidConfig:
        return None


def bytes_per_s(key: str, time_s: float) -> float | None:
    """What a kernel moves between memory and the chip that takes so long for the workload of a key;
    None where that is not its limit, and for a workload of another tuner."""
    workload = workload_of(key)
    rate = memory_rate(workload, time_s) if workload is not None else None
    return None if rate is None else rate.bytes_per_s


def _size(value: Knob | None) -> int | None:
    if isinstance(value, bool | str | None) or value <= 0 or value != int(value):
        return None
    return int(value)
