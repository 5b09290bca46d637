"""Where a tile should have a CTA of its own, or several that divide its steps."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil

from fa_tune.core.arch import ArchLimits
from fa_tune.core.workload import Workload
from fa_tune.families.cluster_room import clusters_at_once
from fa_tune.families.sm90_bwd.config import (
    KEYS,
    PADDED_TO,
    WIDE_ROWS,
    Sm90BackwardConfig,
)
from fa_tune.operations.forward.spec import seen_from, seen_to

SIZES = (2, 3, 4, 6, 8)
WIDE_SIZES = (1, 2, 4, 8)  # of one pass or of both, of what is searched
MANY = 4  # tiles for each multiprocessor: none of them waits long for the last
# What a tile takes besides its steps, in steps, and a cluster once more
# (benchmarks/backward_few_tiles_h200.txt).
TILE_STEPS, CLUSTER_STEPS = 2, 2
# The same above d_head 128, of tiles of 64 keys, and of queries
# (benchmarks/backward_wide_few_tiles_h200.tsv).
WIDE_TILE_STEPS, WIDE_CLUSTER_STEPS = 4, 1
# At d_head 64 without a mask persistent CTAs spill registers, which long tiles do not make up for.
LONG, SHORT, FEW = 64, 16, 2  # steps of a tile; with few tiles for each multiprocessor; those


def clustered(
    config: Sm90BackwardConfig, workload: Workload, limits: ArchLimits
) -> Sm90BackwardConfig:
    """`config`, or where tiles are few one of clusters: with a mask or at d_head 96, but not up to
    64, of warpgroups that meet in each step.  Up to 64 without a mask also CTAs for a tile each."""
    if config.is_wide:
        return _of_wide(config, workload, limits)
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
    """What a search tries."""
    if config.is_wide:
        for size in WIDE_SIZES:
            half = replace(config, B_c=WIDE_ROWS, cluster=size)
            yield from (half, replace(half, dq_cluster=size), replace(config, dq_cluster=size))
        return
    for form in _forms(config):
        yield from (replace(form, cluster=size) for size in (1, *SIZES))


def _forms(config: Sm90BackwardConfig) -> tuple[Sm90BackwardConfig, Sm90BackwardConfig]:
    """For clusters: warpgroups that do not wait for each other, and those that do."""
    apart = Sm90BackwardConfig(config.dtype, config.d_head, config.B_r, config.B_c, 3)
    return apart, replace(apart, q_stages=3 if config.d_head <= 64 else 2, same_step=True)


def cluster_of(config: Sm90BackwardConfig, workload: Workload, limits: ArchLimits) -> int:
    """CTAs of a cluster, or 1."""
    n_sms, tiles = limits.multiprocessors, tiles_of(workload)
    if tiles > MANY * n_sms:
        return 1
    group = workload.heads // workload.kv_heads
    heads = tiles // ceil(workload.seq_len_kv / KEYS)
    blocks = _blocks_of_queries(workload, config.B_r, KEYS)
    steps = [group * n for n in blocks for _ in range(heads)]
    return _fastest(steps, n_sms, TILE_STEPS, CLUSTER_STEPS)[1]


def _of_wide(
    config: Sm90BackwardConfig, workload: Workload, limits: ArchLimits
) -> Sm90BackwardConfig:
    """With clusters in either pass, or tiles of half of the keys, where these are fastest."""
    extra = WIDE_TILE_STEPS, WIDE_CLUSTER_STEPS
    n_sms, w = limits.multiprocessors, workload
    if query_tiles_of(w) <= MANY * n_sms:
        heads = query_tiles_of(w) // ceil(w.seq_len_q / PADDED_TO)
        of_dq = [n for n in _blocks_of_keys(w, config.dq_keys) for _ in range(heads)]
        config = replace(config, dq_cluster=_fastest(of_dq, n_sms, *extra)[1])
    tiles, group = tiles_of(w), w.heads // w.kv_heads
    if tiles > MANY * n_sms:
        return config
    heads = tiles // ceil(w.seq_len_kv / KEYS)
    halves = [group * n for n in _blocks_of_queries(w, config.B_r, WIDE_ROWS)]
    # A CTA for both halves goes through one after the other.
    both = [
        sum(two) + WIDE_TILE_STEPS * (len(two) - 1)
        for two in (halves[i : i + 2] for i in range(0, len(halves), 2))
    ]
    one_by_one = _taken(both * heads, 1, n_sms, WIDE_TILE_STEPS)
    least, cluster = _fastest(halves * heads, n_sms, *extra)
    return replace(config, B_c=WIDE_ROWS, cluster=cluster) if least < one_by_one else config


def _fastest(
    steps: Sequence[int], n_sms: int, tile_steps: int, cluster_steps: int
) -> tuple[int, int]:
    """How long tiles of so many steps take, in steps, and with clusters of how many CTAs."""
    return min(
        (_taken(steps, size, n_sms, tile_steps + cluster_steps * (size > 1)), size)
        for size in (1, *SIZES)
    )


def _taken(steps: Sequence[int], cluster: int, n_sms: int, extra: int) -> int:
    at_work = [0] * clusters_at_once(cluster, n_sms)
    for n in sorted(steps, reverse=True):  # the longest first, each where it can begin first
        heapq.heapreplace(at_work, at_work[0] + ceil(n / cluster) + extra)
    return max(at_work)


def tiles_of(workload: Workload) -> int:
    """Tiles of keys; packed sequences count as of the longest one's length."""
    w = workload
    sequences = ceil(w.total_kv / w.seq_len_kv) if w.packed else w.batch
    return sequences * w.kv_heads * ceil(w.seq_len_kv / KEYS)


def query_tiles_of(workload: Workload) -> int:
    """Tiles of queries, of dQ's pass; counted like `tiles_of`."""
    w = workload
    sequences = ceil(w.total_q / w.seq_len_q) if w.packed else w.batch
    return sequences * w.heads * ceil(w.seq_len_q / PADDED_TO)


def _blocks_of_queries(workload: Workload, rows: int, keys: int) -> Iterator[int]:
    """Blocks of queries that see a tile of so many keys, for each of a sequence's tiles."""
    w = workload
    moved, last, first = _moved(w), seen_to(w), seen_from(w)
    for key in range(0, w.seq_len_kv, keys):
        begin = 0 if last is None else max(0, key - last - moved + 1)
        end = w.seq_len_q
        if first is not None:
            end = min(end, min(key + keys, w.seq_len_kv) - first - moved)
        yield max(0, ceil(end / rows) - begin // rows) if begin < end else 0


def _blocks_of_keys(workload: Workload, keys: int) -> Iterator[int]:
    """Blocks of keys that a tile of queries sees, for each of a sequence's tiles."""
    w = workload
    moved, last, first = _moved(w), seen_to(w), seen_from(w)
    for row in range(0, w.seq_len_q, PADDED_TO):
        begin = 0 if first is None else max(0, row + first + moved)
        end = w.seq_len_kv
        if last is not None:
            end = min(end, min(row + PADDED_TO, w.seq_len_q) - 1 + last + moved)
        yield max(0, ceil(end / keys) - begin // keys) if begin < end else 0


def _moved(workload: Workload) -> int:
    """What a sequence of the longest lengths has its diagonal further on than `workload`."""
    w = workload
    return w.seq_len_kv - w.seq_len_q - w.diagonal if w.packed else 0
