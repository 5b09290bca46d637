"""Where a cluster for each tile is faster than CTAs that share all tiles, by figures of an H200
(benchmarks/decode_h200.txt)."""

from __future__ import annotations

from dataclasses import replace

from fa_tune.core.arch import ArchLimits
from fa_tune.families.decode.config import MMA_M, DecodeConfig, KVType, constraints

MEASURED = (9, 0)  # compute capability
D_HEAD = 128  # of K and of V, in 16 bits
MOST_BYTES = 70_000_000  # of K and V
MULTIPROCESSORS = 132
# CTAs of a cluster: clusters that run at a time, a CTA for a multiprocessor.
ROOM = {2: 66, 4: 30, 8: 15}
CTA_BYTES_PER_NS = 64.0  # that one CTA reads at most
BYTES_PER_NS = 4400.0  # that all of them do
PARTS_NS = 1300.0  # for the parts of a tile to go through memory
DEEP_BLOCKS = 4  # of a CTA: where there are more, a deeper ring, if few CTAs read


def default(
    shared: DecodeConfig, arch: ArchLimits, tiles: int, n_keys: int | None
) -> DecodeConfig | None:
    """`shared`, whose CTAs share all tiles, with a cluster for each of `tiles` that have `n_keys`,
    where that is faster; else None, also where no more is known."""
    if n_keys is None or arch.compute_capability != MEASURED or not _is_measured(shared):
        return None
    blocks = -(-n_keys // shared.B_c)
    if tiles * blocks * _block_bytes(shared) > MOST_BYTES:
        return None
    times = {
        cluster: _read_ns(shared, tiles, blocks, cluster)
        for cluster in ROOM
        if tiles <= ROOM[cluster] and cluster <= blocks
    }
    parts = min(MULTIPROCESSORS // tiles, blocks) if tiles <= MULTIPROCESSORS else 1
    if not times or parts == 1:
        return None
    best = min(times, key=lambda cluster: times[cluster])
    if times[best] >= _read_ns(shared, tiles, blocks, parts) + PARTS_NS:
        return None
    found = replace(shared, cluster=best, aligned=False)
    if tiles * best * CTA_BYTES_PER_NS < BYTES_PER_NS and blocks > best * DEEP_BLOCKS:
        found = replace(found, stages=shared.stages + 1)
    return found if constraints(found, arch) is None else None


def _read_ns(config: DecodeConfig, tiles: int, blocks: int, parts: int) -> float:
    """What CTAs take to read the keys of tiles that are in so many parts."""
    n_bytes = -(-blocks // parts) * _block_bytes(config)
    return n_bytes / min(CTA_BYTES_PER_NS, BYTES_PER_NS / (tiles * parts))


def _block_bytes(config: DecodeConfig) -> int:
    return config.B_c * (config.d_head + config.d_v) * config.kv_bytes


def _is_measured(config: DecodeConfig) -> bool:
    wide = config.d_head == config.d_v == D_HEAD and config.kv_type is KVType.SAME
    return wide and config.B_r == MMA_M
