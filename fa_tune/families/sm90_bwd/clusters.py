"""Where a tile of keys should have a CTA of its own, or several that divide its queries."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from fa_tune.core.arch import ArchLimits
from fa_tune.core.workload import Workload
from fa_tune.families.cluster_room import clusters_at_once
from fa_tune.families.sm90_bwd.config import KEYS, Sm90BackwardConfig
from fa_tune.operations.forward.spec import seen_from, seen_to

SIZES = (2, 3, 4, 6, 8)
MANY = 4  # tiles for each multiprocessor: none of them waits long for the last
# What a tile takes besides its steps, in steps, and a cluster once more
# (benchmarks/backward_few_tiles_h200.txt).
TILE_STEPS, CLUSTER_STEPS = 2, 2
# At d_head 64 without a mask persistent CTAs spill registers, which long tiles do not make up for.
LONG, SHORT, FEW = 64, 16, 2  # steps of a tile; with few tiles for each multiprocessor; those


def clustered(
    config: Sm90BackwardConfig, workload: Workload, limits: ArchLimits
) -> Sm90BackwardConfig:
    """`config`, or where tiles are few one of clusters: with a mask or at d_head 96, but not up to
    64, of warpgroups that meet in each step.  Up to 64 without a mask also CTAs for a tile each."""
    cluster = cluster_of(config, workload, limits)
    apart, meeting = _forms(config)
    masked = workload.causal or workload.windowed
    if cluster == 1:
        small = config.d_head <= 64 and not masked
        return apart if small and _are_long(config, workload, limits) else config
    meets = config.d_head > 64 and (masked or config.padded_d == 96)
    return replace(meeting if meets else apart, cluster=cluster)


def _are_long(config: Sm90BackwardConfig, workload: Workload, limits: ArchLimits) -> bool:
    few = tiles_of(workload) <= FEW * limits.multiprocessors
    steps = ceil(workload.seq_len_q / config.B_r) * (workload.heads // workload.kv_heads)
    return steps >= (SHORT if few else LONG)


def of_sizes(config: Sm90BackwardConfig) -> Iterator[Sm90BackwardConfig]:
    """All that a search may try."""
    for form in _forms(config):
        yield from (replace(form, cluster=size) for size in (1, *SIZES))


def _forms(config: Sm90BackwardConfig) -> tuple[Sm90BackwardConfig, Sm90BackwardConfig]:
    """For clusters: warpgroups that do not wait for each other, and those that do."""
    apart = Sm90BackwardConfig(config.dtype, config.d_head, config.B_r, config.B_c, 3)
    return apart, replace(apart, q_stages=3 if config.d_head <= 64 else 2, same_step=True)


def cluster_of(config: Sm90BackwardConfig, workload: Workload, limits: ArchLimits) -> int:
    """CTAs of a cluster, or 1."""
    n_sms, tiles = limits.multiprocessors, tiles_of(workload)
    if config.is_wide or tiles > MANY * n_sms:
        return 1
    group = workload.heads // workload.kv_heads
    heads = tiles // ceil(workload.seq_len_kv / KEYS)
    blocks = _blocks_of_queries(workload, config.B_r)
    steps = sorted((group * n for n in blocks for _ in range(heads)), reverse=True)
    room = {c: clusters_at_once(c, n_sms) for c in (1, *SIZES)}

    def taken(cluster: int) -> int:
        extra = TILE_STEPS + CLUSTER_STEPS * (cluster > 1)
        at_work = [0] * room[cluster]
        for n in steps:  # the longest first, each where it can begin first
            heapq.heapreplace(at_work, at_work[0] + ceil(n / cluster) + extra)
        return max(at_work)

    return min(room, key=taken)


def tiles_of(workload: Workload) -> int:
    """Tiles of keys; packed sequences count as of the longest one's length."""
    w = workload
    sequences = ceil(w.total_kv / w.seq_len_kv) if w.packed else w.batch
    return sequences * w.kv_heads * ceil(w.seq_len_kv / KEYS)


def _blocks_of_queries(workload: Workload, rows: int) -> Iterator[int]:
    """Blocks of queries that see a tile, for each of a sequence's tiles."""
    w = workload
    moved = w.seq_len_kv - w.seq_len_q - w.diagonal if w.packed else 0
    last, first = seen_to(w), seen_from(w)
    for key in range(0, w.seq_len_kv, KEYS):
        begin = 0 if last is None else max(0, key - last - moved + 1)
        end = w.seq_len_q
        if first is not None:
            end = min(end, min(key + KEYS, w.seq_len_kv) - first - moved)
        yield max(0, ceil(end / rows) - begin // rows) if begin < end else 0
