"""Kernels for problems whose tiles are few for the device: CTAs of one tile each, or clusters whose
CTAs divide the keys of one, and how long these, persistent CTAs and the `decode` family take.

`tools/fit_few_tiles.py` writes `few_tiles.csv`, the terms of those times, from a recording on an
H200: benchmarks/few_tiles_h200.tsv.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import NamedTuple

from fa_tune.core.workload import Workload
from fa_tune.families.cluster_room import SIZES, clusters_at_once
from fa_tune.families.sm90 import defaults
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config

PATH = Path(__file__).with_name("few_tiles.csv")
SMALLEST = (1, 64)  # tile: warpgroups, and keys of a block
PERSISTENT, DECODE = "persistent", "decode"
# Of the time of persistent CTAs and of `decode`, at most, that others must take.
GAIN, DECODE_GAIN = 0.95, 0.9
AREA = 128 * 128  # rows times keys of a block, in which persistent CTAs and `decode` are counted
ROWS = 16  # of tiles of `decode`, in multiples
MEGABYTE = 1e6


class Terms(NamedTuple):
    """Microseconds of a block of keys, of a launch, of one with clusters besides, and of each CTA
    of a cluster; for `decode` in place of the last of a megabyte of K and V."""

    block: float
    launch: float
    clusters: float
    part: float


def candidates(usual: Sm90Config) -> Iterator[Sm90Config]:
    """Configs of one tile for each CTA or cluster, like the usual one of a workload's heads: with
    its own tile, one of fewer rows, and the smallest."""
    larger = ((n, usual.B_c) for n in range(2, usual.mma_warpgroups + 1))
    for (warpgroups, keys), splits in itertools.product((SMALLEST, *larger), SIZES):
        found = _of_one_tile(usual, warpgroups, keys, splits)
        if splits == 1 or found.part_bytes <= found.ring_bytes:
            yield found


def _of_one_tile(usual: Sm90Config, warpgroups: int, keys: int, splits: int) -> Sm90Config:
    own = (warpgroups, keys) == (usual.mma_warpgroups, usual.B_c)
    watched = usual.rescale is Rescale.WATCHED_MAX
    found = replace(
        usual,
        mma_warpgroups=warpgroups,
        B_c=keys,
        q_stages=1,
        pingpong=warpgroups > 1,
        cross_tile_overlap=False,
        rescale=Rescale.STALE_MAX if watched else usual.rescale,
        scheduler=Scheduler.SINGLE,
        order=Order.LINEAR,
        rows_in_turn=own and usual.rows_in_turn,
        adaptive_max=own and usual.adaptive_max,
        splits=splits,
    )
    return replace(found, single_loop=defaults.single_loop(found))


def faster(usual: Sm90Config, workload: Workload, multiprocessors: int) -> Sm90Config:
    """`usual`, the default of persistent CTAs, or what takes less time."""
    w, found = workload, _fastest(workload, multiprocessors)
    most = GAIN * _sum(PERSISTENT, w, persistent_work(usual, w))
    return usual if found is None or _sum(form_of(found), w, work(found, w)) > most else found


def outrun_decode(workload: Workload, multiprocessors: int) -> bool:
    """Whether kernels of one tile are faster than those of the `decode` family."""
    w, found = workload, _fastest(workload, multiprocessors)
    if found is None or w.rows_of_kv_head <= ROWS:
        return False
    most = DECODE_GAIN * _sum(DECODE, w, decode_work(w, multiprocessors))
    return _sum(form_of(found), w, work(found, w)) < most


def _fastest(workload: Workload, multiprocessors: int) -> Sm90Config | None:
    """The fastest of those whose tiles all run at a time."""
    w = workload
    if w.packed or w.cached or w.windowed or w.kv_e4m3 or w.d_head_v:
        return None
    usual = defaults.default_config(w.d_head, w.dtype)
    fitting = [c for c in candidates(usual) if suits(c, w, multiprocessors)]
    return min(fitting, key=lambda c: _sum(form_of(c), w, work(c, w)), default=None)


def suits(config: Sm90Config, workload: Workload, multiprocessors: int) -> bool:
    """Whether all tiles run at a time, if the config is one of `candidates`, and none of its
    clusters has more CTAs than blocks of keys."""
    plain = config.rescale < Rescale.STALE_MAX  # the first steps of the ladder
    if config.persistent or config.order is not Order.LINEAR or plain:
        return True
    if config.splits > 1 and (workload.packed or config.splits > _blocks(config, workload)):
        return False
    return tiles_of(config, workload) <= clusters_at_once(config.splits, multiprocessors)


def tiles_of(config: Sm90Config, workload: Workload) -> int:
    """Tiles of a dense batch."""
    return workload.batch * workload.heads * ceil(workload.seq_len_q / config.B_r)


def _blocks(config: Sm90Config, workload: Workload) -> int:
    return ceil(workload.seq_len_kv / config.B_c)


def form_of(config: Sm90Config) -> str:
    """Its name in the table."""
    return f"{config.mma_warpgroups}x{config.B_c}"


def work(config: Sm90Config, workload: Workload) -> Terms:
    """How often a config of `candidates` has each term, where all tiles run at a time."""
    clusters = config.splits > 1
    blocks = ceil(_blocks(config, workload) / config.splits)
    return Terms(blocks, 1, clusters, config.splits * clusters)


def persistent_work(config: Sm90Config, workload: Workload) -> Terms:
    """The same of persistent CTAs."""
    return Terms(defaults.taken(config, workload) / AREA, 1, 0, 0)


def decode_work(workload: Workload, multiprocessors: int) -> Terms:
    """The same of the `decode` family's default."""
    w = workload
    heads, (tiles, rows) = w.batch * w.kv_heads, w.row_tiles
    padded = tiles * ceil(rows / ROWS) * ROWS
    read = heads * w.seq_len_kv * (w.d_head + w.d_v) * w.dtype.size_bytes / MEGABYTE
    return Terms(heads * padded * w.seq_len_kv / AREA / multiprocessors, 1, 0, read)


def _sum(form: str, workload: Workload, work: Terms) -> float:
    terms = _terms()[form]
    kind = min((d for d in terms if d >= workload.d_head), default=max(terms))
    return sum(each * often for each, often in zip(terms[kind], work, strict=True))


@cache
def _terms() -> dict[str, dict[int, Terms]]:
    """The table, by form and head dimension."""
    found: dict[str, dict[int, Terms]] = {}
    with PATH.open(encoding="utf-8", newline="") as file:
        for form, d_head, *terms in list(csv.reader(file))[1:]:
            found.setdefault(form, {})[int(d_head)] = Terms(*map(float, terms))
    return found
