"""Where a cluster or a CTA for each tile is faster than CTAs that share all tiles, by figures of an
H200 (benchmarks/decode_h200.txt)."""

from __future__ import annotations

from dataclasses import replace

from fa_tune.core.arch import ArchLimits
from fa_tune.families.decode.config import (
    MMA_M,
    MOST_BLOCKS,
    DecodeConfig,
    KVType,
    constraints,
)

MEASURED = (9, 0)  # compute capability
D_HEADS = (64, 128)  # of K and of V
MOST_BYTES = {MMA_M: 140_000_000, 2 * MMA_M: 70_000_000}  # of K and V, by rows
MULTIPROCESSORS = 132
# CTAs of a cluster: clusters that run at a time, a CTA for a multiprocessor.
ROOM = {2: 66, 4: 30, 8: 15}
FEW_KEYS = 256  # of a CTA: to divide these among more of them gains nothing
BYTES_PER_NS = 4400.0  # that all CTAs read at most
# What one of them does: bound by its ring, of which there is more or less, or by widening e4m3.
CTA_BYTES_PER_NS, DEEP_CTA_BYTES_PER_NS, E4M3_CTA_BYTES_PER_NS = 64.0, 70.0, 40.0
DEEP_BLOCKS = 4  # of a CTA: where there are more, a deeper ring, if few CTAs read
# For parts of 16 rows to go through memory, and more for each of them.
PARTS_NS, PART_NS = 350.0, 75.0
DEPENDENT_NS = 950.0  # that a launch gains which begins before the one in front of it is done
# Clusters of launches that overlap crowd some of the multiprocessors' groups, where tiles with more
# bytes than these lose more than they gain, unless both launches have room or the first has all.
DEPENDENT_BYTES, ALL = 1 << 20, 0.9
# Tiles, by rows, for which there is no room for clusters of 2, a CTA for a multiprocessor, and
# which leave many multiprocessors without work if a CTA has one: two CTAs for each.  The fewest of
# these read less than shares where there are many keys.
PAIRED_TILES = {MMA_M: 105, 2 * MMA_M: 97}
FEW_PAIRED_TILES = 88
# Of so many tiles CTAs of one each are faster, three for a multiprocessor.
WHOLE_TILES = range(160, 250)
SMALL_CTA_KEYS = 4096  # of few pairs and of whole tiles
PAIRED_KEYS = 512  # fewer were not measured
# Of a CTA: to read them twice, for two tiles of half of the rows, is faster than larger tiles.
HALF_KEYS = 512


def default(
    shared: DecodeConfig, arch: ArchLimits, tiles: int, n_keys: int | None
) -> DecodeConfig | None:
    """`shared`, whose CTAs share all tiles, with a cluster or a CTA for each of `tiles` that have
    `n_keys`, where that is faster; else None, also where no more is known."""
    if n_keys is None or arch.compute_capability != MEASURED or not _is_measured(shared):
        return None
    small = _of_small_ctas(shared, tiles, n_keys)
    if small is not None and constraints(small, arch) is None:
        return small
    blocks = -(-n_keys // shared.B_c)
    tile_bytes = blocks * _block_bytes(shared)
    if tiles * tile_bytes > MOST_BYTES[shared.B_r]:
        return None
    if shared.B_r > MMA_M and (halves := _halves(shared, tiles, blocks)) is not None:
        shared, tiles = halves, 2 * tiles
    cluster = _cluster(shared, tiles, blocks)
    if cluster is None:
        return None
    found = replace(shared, cluster=cluster, aligned=False)
    if _wants_depth(found, tiles, blocks):
        found = replace(found, stages=shared.stages + 1)
    room = ROOM[cluster]
    if tile_bytes <= DEPENDENT_BYTES or 2 * tiles <= room or tiles >= ALL * room:
        found = replace(found, dependent=True)
    if _keys(found, blocks) > FEW_KEYS and not _gains(found, shared, tiles, blocks):
        return None
    return found if constraints(found, arch) is None else None


def _of_small_ctas(shared: DecodeConfig, tiles: int, n_keys: int) -> DecodeConfig | None:
    """Of as many CTAs for a multiprocessor as such tiles suit."""
    if not _is_wide(shared) or n_keys < PAIRED_KEYS:
        return None
    tile = replace(shared, B_c=64, n_warps=4, stages=2)
    short = n_keys <= SMALL_CTA_KEYS
    if ROOM[2] < tiles <= PAIRED_TILES[shared.B_r] and (short or tiles >= FEW_PAIRED_TILES):
        return replace(tile, ctas_per_sm=2, cluster=2, aligned=False)
    if tiles in WHOLE_TILES and short and shared.B_r == MMA_M:
        return replace(tile, ctas_per_sm=3, min_blocks=MOST_BLOCKS)
    return None


def _keys(config: DecodeConfig, blocks: int) -> int:
    """Of a CTA of a cluster."""
    return -(-blocks // config.cluster) * config.B_c


def _gains(found: DecodeConfig, shared: DecodeConfig, tiles: int, blocks: int) -> bool:
    """Whether clusters take less time than equal shares with `dependent`."""
    parts = min(MULTIPROCESSORS // tiles, blocks)
    saved_ns = (PARTS_NS + PART_NS * parts) * shared.B_r / MMA_M
    if not found.dependent:
        saved_ns -= DEPENDENT_NS
    read_ns = _read_ns(found, tiles, blocks, found.cluster)
    return read_ns < _read_ns(shared, tiles, blocks, parts) + saved_ns


def _halves(shared: DecodeConfig, tiles: int, blocks: int) -> DecodeConfig | None:
    """The tile of half of the rows, if clusters of two of them have few keys for each CTA."""
    if not _is_wide(shared):
        return None
    half = replace(shared, B_r=MMA_M, row_warps=1)
    cluster = _cluster(half, 2 * tiles, blocks)
    if cluster is None or _keys(replace(half, cluster=cluster), blocks) > HALF_KEYS:
        return None
    return half


def _cluster(shared: DecodeConfig, tiles: int, blocks: int) -> int | None:
    """The smallest whose CTAs have few keys, else the one that reads fastest; of those that have
    room and a block for each CTA."""
    possible = [c for c in ROOM if tiles <= ROOM[c] and c <= blocks]
    small = [c for c in possible if _keys(replace(shared, cluster=c), blocks) <= FEW_KEYS]
    if small:
        return small[0]
    return min(possible, key=lambda c: _read_ns(shared, tiles, blocks, c), default=None)


def _wants_depth(config: DecodeConfig, tiles: int, blocks: int) -> bool:
    if config.B_r != MMA_M or not _is_wide(config):
        return False
    few = tiles * config.cluster * CTA_BYTES_PER_NS < BYTES_PER_NS
    return few and blocks > config.cluster * DEEP_BLOCKS


def _read_ns(config: DecodeConfig, tiles: int, blocks: int, parts: int) -> float:
    """What CTAs take to read the keys of tiles that are in so many parts."""
    n_bytes = -(-blocks // parts) * _block_bytes(config)
    return n_bytes / min(_cta_bytes_per_ns(config), BYTES_PER_NS / (tiles * parts))


def _cta_bytes_per_ns(config: DecodeConfig) -> float:
    if config.kv_type is KVType.E4M3:
        return E4M3_CTA_BYTES_PER_NS
    return CTA_BYTES_PER_NS if config.stages == 2 else DEEP_CTA_BYTES_PER_NS


def _block_bytes(config: DecodeConfig) -> int:
    return config.B_c * (config.d_head + config.d_v) * config.kv_bytes


def _is_wide(config: DecodeConfig) -> bool:
    return config.d_head == max(D_HEADS) and config.kv_type is KVType.SAME


def _is_measured(config: DecodeConfig) -> bool:
    return config.d_head == config.d_v and config.d_head in D_HEADS and config.B_r in MOST_BYTES
