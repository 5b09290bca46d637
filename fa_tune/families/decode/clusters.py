"""Where a cluster or a CTA for each tile is faster than CTAs that share all tiles, by figures of an
H200 (benchmarks/decode_h200.txt)."""

from __future__ import annotations

from dataclasses import replace

from fa_tune.core.arch import ArchLimits
from fa_tune.families.decode.config import MMA_M, MOST_BLOCKS, Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.decode.reading import Tiles, key_bytes

MEASURED = (9, 0)  # compute capability
D_HEADS = (64, 128)  # of K and of V
SIZES = (2, 4, 8)  # CTAs of a cluster
# Clusters need multiprocessors that are neighbours, which 10 of 11 have for clusters of 4 and more:
# of 132 there are 66 groups of 2, but 30 of 4 and 15 of 8.
LARGE, LARGE_ROOM = 4, (10, 11)
MOST_NS = {MMA_M: 32_000.0, 2 * MMA_M: 16_000.0}  # of reading, by rows: equal shares are as good
FEW_KEYS = 256  # of a CTA: to divide these among more of them gains nothing
# What a CTA reads in a ns: bound by its ring, of which there is more or less, or by widening e4m3.
CTA_BYTES_PER_NS, DEEP_CTA_BYTES_PER_NS, E4M3_CTA_BYTES_PER_NS = 64.0, 70.0, 40.0
DEEP_BLOCKS = 4  # of a CTA: where there are more, a deeper ring, if few CTAs read
# For parts of 16 rows to go through memory, and more for each of them.
PARTS_NS, PART_NS = 350.0, 75.0
TOGETHER_NS = 2500.0  # for any number that the CTAs of a tile combine together
DEPENDENT_NS = 950.0  # that a launch gains which begins before the one in front of it is done
# Clusters of launches that overlap crowd some of the multiprocessors' groups, where tiles with more
# bytes than these lose more than they gain, unless both launches have room or the first has all.
DEPENDENT_BYTES, ALL = 1 << 20, 0.9
# Small CTAs, by tiles for a multiprocessor.  Tiles for which there is no room in clusters of 2, a
# CTA for a multiprocessor, leave many of these without work if a CTA has one: up to so many, by
# rows, have a cluster of 2 each, two CTAs for a multiprocessor.  The fewest of these read less than
# shares where there are many keys.
PAIRED = {MMA_M: 0.8, 2 * MMA_M: 0.74}
FEW_PAIRED = 2 / 3
# From so many to so many CTAs of one each are faster, three for a multiprocessor.
WHOLE, TWO = 1.2, 1.9
SMALL_RING_BYTES, SMALL_CTA_WARPS = 64 << 10, 4
# Of a tile with small CTAs.  Fewer were not measured; with more, whole tiles and few pairs are
# slower.
SMALL_CTA_BYTES, MOST_SMALL_CTA_BYTES = 256 << 10, 2 << 20
# Of a tile whose length the device alone knows: a cluster of 2 reads so many in 16 us.
MOST_UNEVEN_BYTES = 2 << 20
# Of a CTA: to read them twice, for two tiles of half of the rows, is faster than larger tiles.
HALF_KEYS = 512


def default(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """`shared`, whose CTAs share all tiles, with a cluster or a CTA for each of these, where that
    is faster; else None, also where it may be much slower than equal shares."""
    if tiles.arch.compute_capability != MEASURED or not _is_measured(shared):
        return None
    found = _of_small_ctas(shared, tiles) if tiles.keys else None
    if found is None or constraints(found, tiles.arch) is not None:
        found = _of_clusters(shared, _at_most(shared, tiles))
    return found if found is not None and constraints(found, tiles.arch) is None else None


def _at_most(shared: DecodeConfig, tiles: Tiles) -> Tiles:
    """The tiles with as many keys as they may have, where the device alone knows how many; with
    none where a cluster could be at work on the longest long after all others are done."""
    if tiles.keys:
        return tiles
    bounded = tiles.sequences == 1 or tiles.most_keys * key_bytes(shared) <= MOST_UNEVEN_BYTES
    return replace(tiles, keys=tiles.most_keys if bounded else 0)


def _of_clusters(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """A cluster for each, a CTA for a multiprocessor."""
    blocks = -(-tiles.keys // shared.B_c)
    if not blocks or replace(tiles, keys=blocks * shared.B_c).read_ns(shared) > MOST_NS[shared.B_r]:
        return None
    if shared.B_r > MMA_M and (halves := _halves(shared, tiles)) is not None:
        shared, tiles = halves, tiles.halves()
    cluster = _cluster(shared, tiles)
    if cluster is None:
        return None
    found = replace(shared, cluster=cluster, aligned=False, combine=Combine.LAST)
    if _wants_depth(found, tiles):
        found = replace(found, stages=shared.stages + 1)
    room = _room(cluster, tiles.arch)
    if (
        blocks * _block_bytes(shared) <= DEPENDENT_BYTES
        or 2 * tiles.number <= room
        or tiles.number >= ALL * room
    ):
        found = replace(found, dependent=True)
    if _keys(found, tiles) > FEW_KEYS and not _gains(found, shared, tiles):
        return None
    return found


def all_at_once(config: DecodeConfig, tiles: Tiles) -> bool:
    """Whether the clusters of all tiles run at a time."""
    return tiles.number <= config.ctas_per_sm * _room(config.cluster, tiles.arch)


def _room(cluster: int, arch: ArchLimits) -> int:
    """Clusters that run at a time, a CTA for a multiprocessor."""
    part, whole = LARGE_ROOM if cluster >= LARGE else (1, 1)
    return arch.multiprocessors * part // whole // cluster


def _of_small_ctas(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """Of as many CTAs for a multiprocessor as such tiles suit."""
    tile_bytes = tiles.keys * key_bytes(shared)
    if tile_bytes < SMALL_CTA_BYTES:
        return None
    keys = SMALL_RING_BYTES // 2 // key_bytes(shared)
    tile = replace(shared, B_c=keys, n_warps=SMALL_CTA_WARPS, stages=2, combine=Combine.LAST)
    few_keys = tile_bytes <= MOST_SMALL_CTA_BYTES
    if (
        tiles.number > _room(2, tiles.arch)
        and tiles.density <= PAIRED[shared.B_r]
        and (few_keys or tiles.density >= FEW_PAIRED)
    ):
        return replace(tile, ctas_per_sm=2, cluster=2, aligned=False)
    whole = shared.B_r == MMA_M and shared.kv_type is KVType.SAME  # else bound by widening
    if whole and few_keys and WHOLE <= tiles.density < TWO:
        return replace(tile, ctas_per_sm=3, min_blocks=MOST_BLOCKS)
    return None


def _blocks(config: DecodeConfig, tiles: Tiles) -> int:
    return -(-tiles.keys // config.B_c)


def _keys(config: DecodeConfig, tiles: Tiles) -> int:
    """Of a CTA of a cluster."""
    return -(-_blocks(config, tiles) // config.cluster) * config.B_c


def _gains(found: DecodeConfig, shared: DecodeConfig, tiles: Tiles) -> bool:
    """Whether clusters take less time than equal shares with `dependent`."""
    parts = min(tiles.arch.multiprocessors // tiles.number, _blocks(shared, tiles))
    saved_ns = (PARTS_NS + PART_NS * parts) * shared.B_r / MMA_M
    if shared.combine is Combine.ALL:
        saved_ns = min(saved_ns, TOGETHER_NS)
    if not found.dependent:
        saved_ns -= DEPENDENT_NS
    read_ns = _read_ns(found, tiles, found.cluster)
    return read_ns < _read_ns(shared, tiles, parts) + saved_ns


def _halves(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """The tile of half of the rows, if clusters of two of them have few keys for each CTA."""
    if not _is_wide(shared):
        return None
    half = replace(shared, B_r=MMA_M, row_warps=1)
    cluster = _cluster(half, tiles.halves())
    if cluster is None or _keys(replace(half, cluster=cluster), tiles) > HALF_KEYS:
        return None
    return half


def _cluster(shared: DecodeConfig, tiles: Tiles) -> int | None:
    """The smallest whose CTAs have few keys, else the one that reads fastest; of those that have
    room and a block for each CTA."""
    possible = [
        c for c in SIZES if tiles.number <= _room(c, tiles.arch) and c <= _blocks(shared, tiles)
    ]
    small = [c for c in possible if _keys(replace(shared, cluster=c), tiles) <= FEW_KEYS]
    if small:
        return small[0]
    return min(possible, key=lambda c: _read_ns(shared, tiles, c), default=None)


def _wants_depth(config: DecodeConfig, tiles: Tiles) -> bool:
    if config.B_r != MMA_M or not _is_wide(config):
        return False
    few = tiles.number * config.cluster * CTA_BYTES_PER_NS < tiles.bytes_per_ns
    return few and _blocks(config, tiles) > config.cluster * DEEP_BLOCKS


def _read_ns(config: DecodeConfig, tiles: Tiles, parts: int) -> float:
    """What CTAs take to read the keys of tiles that are in so many parts."""
    n_bytes = -(-_blocks(config, tiles) // parts) * _block_bytes(config)
    return n_bytes / min(_cta_bytes_per_ns(config), tiles.bytes_per_ns / (tiles.number * parts))


def _cta_bytes_per_ns(config: DecodeConfig) -> float:
    if config.kv_type is KVType.E4M3:
        return E4M3_CTA_BYTES_PER_NS
    return CTA_BYTES_PER_NS if config.stages == 2 else DEEP_CTA_BYTES_PER_NS


def _block_bytes(config: DecodeConfig) -> int:
    return config.B_c * key_bytes(config)


def _is_wide(config: DecodeConfig) -> bool:
    return config.d_head == max(D_HEADS) and config.kv_type is KVType.SAME


def _is_measured(config: DecodeConfig) -> bool:
    return config.d_head == config.d_v and config.d_head in D_HEADS and config.B_r in MOST_NS
