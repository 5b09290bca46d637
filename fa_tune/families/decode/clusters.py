"""Where a cluster or a CTA for each tile is faster than CTAs that share all tiles, by figures of an
H200 and an H100 (benchmarks/decode_h200.txt, decode_h100.txt)."""

from __future__ import annotations

from dataclasses import replace

from fa_tune.core.arch import ArchLimits
from fa_tune.families.decode.config import MMA_M, MOST_BLOCKS, Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.decode.reading import Tiles

MEASURED = (9, 0)  # compute capability
D_HEADS = (64, 128)  # of K and of V
LARGER = ((192, 128), (256, 256))  # of K and of V, measured with 16 rows and clusters alone
SIZES = (2, 4, 8)  # CTAs of a cluster
# Clusters need multiprocessors that are neighbours, which 10 of 11 have for clusters of 4 and more:
# of 132 there are 66 groups of 2, but 30 of 4 and 15 of 8.
LARGE, LARGE_ROOM = 4, (10, 11)
# Of reading, by rows: equal shares are as good with more, of larger heads with half of it.
MOST_NS = {MMA_M: 80_000.0, 2 * MMA_M: 40_000.0}
# Of a CTA: to divide these among more of them gains nothing, but half of them do with few tiles.
FEW_KEYS = 256
FEW_TILES = 8
# What a CTA reads in a ns: bound by its ring, of which there is more or less, or by widening e4m3.
CTA_BYTES_PER_NS, DEEP_CTA_BYTES_PER_NS, E4M3_CTA_BYTES_PER_NS = 64.0, 70.0, 40.0
DEEP_BLOCKS = 4  # of a CTA: where there are more, a deeper ring, if few CTAs read
# For parts of 16 rows to go through memory, and more for each of them.
PARTS_NS, PART_NS = 230.0, 90.0
# By rows, for any number that the CTAs of a tile combine together.
TOGETHER_NS = {MMA_M: 3200.0, 2 * MMA_M: 1400.0}
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
# Clusters of 2 that leave no multiprocessor without work are faster with any number of keys.
FULL = 0.95
# And with so much to read, by rows, clusters of 2 with two CTAs for a multiprocessor: half as much
# with so many tiles for each.  All tiles run at a time, or each multiprocessor has some and the
# last of them, which may not fill the GPU, take no longer than a part of the whole.
LARGE_NS = {MMA_M: 900_000.0, 2 * MMA_M: 1_900_000.0}
MANY_TILES, SOME_TILES = 30.0, 3.0
MOST_TAIL = 0.016
# From so many to so many CTAs of one each are faster, three for a multiprocessor.
WHOLE, TWO = 1.2, 1.9
SMALL_RING_BYTES, SMALL_CTA_WARPS = 64 << 10, 4
# Of a tile with small CTAs.  Fewer were not measured; with more, whole tiles and few pairs are
# slower.
SMALL_CTA_BYTES, MOST_SMALL_CTA_BYTES = 256 << 10, 2 << 20
# Of a CTA of a cluster, where the device alone knows how long tiles are: it reads them in 9 us.
MOST_UNEVEN_BYTES = 576 << 10
FEW_UNEVEN_TILES = 4
# Of a CTA: to read them twice, for two tiles of half of the rows, is faster than larger tiles.
HALF_BYTES = 256 << 10


def default(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """`shared`, whose CTAs share all tiles, with a cluster or a CTA for each of these, where that
    is faster; else None, also where it may be much slower than equal shares."""
    if tiles.arch.compute_capability != MEASURED or not _has_clusters(shared):
        return None
    if not tiles.keys and tiles.sequences != 1:
        found = _of_uneven(shared, replace(tiles, keys=tiles.most_keys))
    else:
        found = _of_small_ctas(shared, tiles) if tiles.keys else None
        if found is None or constraints(found, tiles.arch) is not None:
            found = _of_clusters(shared, replace(tiles, keys=tiles.keys or tiles.most_keys))
    return found if found is not None and constraints(found, tiles.arch) is None else None


def _of_uneven(shared: DecodeConfig, longest: Tiles) -> DecodeConfig | None:
    """A cluster for each, where the device alone knows how long they are: none where that of the
    longest could be at work long after all others are done."""
    tile_bytes = longest.keys * shared.key_bytes
    few = longest.number <= longest.arch.multiprocessors
    if _room(2, longest.arch) < longest.number and few and not _is_larger(shared):
        found = _of_two(shared)
    else:
        shared, longest = _halved(shared, longest)
        few_keys = FEW_KEYS // 2 if longest.number <= FEW_UNEVEN_TILES else FEW_KEYS
        cluster = _cluster(shared, longest, few_keys)
        found = replace(_with_cluster(shared, longest, cluster), dependent=True)
    even = tile_bytes <= MOST_UNEVEN_BYTES * found.cluster
    return found if found.cluster > 1 and even else None


def _of_clusters(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """A cluster for each, a CTA for a multiprocessor."""
    blocks = -(-tiles.keys // shared.B_c)
    read_ns = replace(tiles, keys=blocks * shared.B_c).read_ns(shared)
    most_ns = MOST_NS[shared.B_r] / (2 if _is_larger(shared) else 1)
    if not blocks or (read_ns > most_ns and not _fill(shared, tiles)):
        return None
    shared, tiles = _halved(shared, tiles)
    few_keys = FEW_KEYS // 2 if tiles.number <= FEW_TILES else FEW_KEYS
    cluster = _cluster(shared, tiles, few_keys)
    if cluster == 1:
        return None
    deep = _wants_depth(replace(shared, cluster=cluster), tiles)
    deeper = replace(shared, stages=shared.stages + 1) if deep else shared
    found = _with_cluster(deeper, tiles, cluster)
    if _keys(found, tiles) > FEW_KEYS and not _gains(found, shared, tiles):
        return None
    return found


def _halved(shared: DecodeConfig, tiles: Tiles) -> tuple[DecodeConfig, Tiles]:
    """Tiles of half the rows, twice as many, where these are faster in clusters."""
    if shared.B_r > MMA_M and (halves := _halves(shared, tiles)) is not None:
        return halves, tiles.split(2)
    return shared, tiles


def _with_cluster(shared: DecodeConfig, tiles: Tiles, cluster: int) -> DecodeConfig:
    """`shared` with clusters, whose launch begins early where that gains."""
    room = _room(cluster, tiles.arch)
    dependent = (
        _blocks(shared, tiles) * _block_bytes(shared) <= DEPENDENT_BYTES
        or 2 * tiles.number <= room
        or tiles.number >= ALL * room
    )
    found = replace(shared, cluster=cluster, aligned=False, combine=Combine.LAST)
    return replace(found, dependent=True) if dependent else found


def of_sixteen_rows(tile: DecodeConfig) -> DecodeConfig:
    """Tile of the same keys for 16 rows, whose warps divide no rows."""
    return replace(tile, B_r=MMA_M, row_warps=1, n_warps=min(tile.n_warps, tile.B_c // MMA_M))


def all_at_once(config: DecodeConfig, tiles: Tiles) -> bool:
    """Whether the clusters of all tiles run at a time."""
    return tiles.number <= config.ctas_per_sm * _room(config.cluster, tiles.arch)


def _room(cluster: int, arch: ArchLimits) -> int:
    """Clusters that run at a time, a CTA for a multiprocessor."""
    part, whole = LARGE_ROOM if cluster >= LARGE else (1, 1)
    return arch.multiprocessors * part // whole // cluster


def _of_small_ctas(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """Config of as many CTAs for a multiprocessor as such tiles suit."""
    tile_bytes = tiles.keys * shared.key_bytes
    if tile_bytes < SMALL_CTA_BYTES or _is_larger(shared):
        return None
    few_keys = tile_bytes <= MOST_SMALL_CTA_BYTES
    if _is_large(shared, tiles):
        return _of_two(shared)
    if (
        tiles.number > _room(2, tiles.arch)
        and tiles.density <= PAIRED[shared.B_r]
        and (few_keys or tiles.density >= FEW_PAIRED)
    ):
        return _of_two(shared)
    whole = shared.B_r == MMA_M and shared.kv_type is KVType.SAME  # else bound by widening
    if whole and few_keys and WHOLE <= tiles.density < TWO:
        return replace(_small(shared), ctas_per_sm=3, min_blocks=MOST_BLOCKS)
    return None


def _small(shared: DecodeConfig) -> DecodeConfig:
    """The tile of small CTAs."""
    keys = SMALL_RING_BYTES // 2 // shared.key_bytes
    return replace(shared, B_c=keys, n_warps=SMALL_CTA_WARPS, stages=2, combine=Combine.LAST)


def _of_two(shared: DecodeConfig) -> DecodeConfig:
    """A cluster of 2 for each tile, two CTAs for a multiprocessor."""
    return replace(_small(shared), ctas_per_sm=2, cluster=2, aligned=False)


def _fill(config: DecodeConfig, tiles: Tiles) -> bool:
    """Whether clusters of 2 are as many as run at a time, or nearly."""
    room = _room(2, tiles.arch)
    return _is_wide(config) and FULL * room <= tiles.number <= room


def _is_large(config: DecodeConfig, tiles: Tiles) -> bool:
    """Whether there is so much to read that clusters of 2, two CTAs for a multiprocessor, are
    faster than shares."""
    least_ns = LARGE_NS[config.B_r] / (2 if tiles.density >= MANY_TILES else 1)
    if not _is_wide(config) or tiles.read_ns(config) < least_ns:
        return False
    if tiles.density < SOME_TILES:
        return FULL <= tiles.density <= 1.0
    last = tiles.number % tiles.arch.multiprocessors / tiles.arch.multiprocessors
    # Both CTAs of the last ones may be on one multiprocessor, and read no faster than one.
    alone = tiles.bytes_per_ns / tiles.arch.multiprocessors / CTA_BYTES_PER_NS
    return last == 0.0 or alone - last <= MOST_TAIL * tiles.density


def _blocks(config: DecodeConfig, tiles: Tiles) -> int:
    return -(-tiles.keys // config.B_c)


def _keys(config: DecodeConfig, tiles: Tiles) -> int:
    """Keys of a CTA of a cluster."""
    return -(-_blocks(config, tiles) // config.cluster) * config.B_c


def _gains(found: DecodeConfig, shared: DecodeConfig, tiles: Tiles) -> bool:
    """Whether clusters take less time than equal shares with `dependent`."""
    parts = min(tiles.arch.multiprocessors // tiles.number, _blocks(shared, tiles))
    saved_ns = (PARTS_NS + PART_NS * parts) * shared.B_r / MMA_M
    if shared.combine is Combine.ALL:
        saved_ns = TOGETHER_NS[shared.B_r]
    if not found.dependent:
        saved_ns -= DEPENDENT_NS
    read_ns = _read_ns(found, tiles, found.cluster)
    return read_ns < _read_ns(shared, tiles, parts) + saved_ns


def _halves(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """The tile of half of the rows, if clusters of two of them have few keys for each CTA."""
    if shared.kv_type is not KVType.SAME:
        return None
    half = of_sixteen_rows(shared)
    cluster = _cluster(half, tiles.split(2), FEW_KEYS)
    keys = _keys(replace(half, cluster=cluster), tiles)
    few = cluster > 1 and keys * half.key_bytes <= HALF_BYTES
    return half if few else None


def _cluster(shared: DecodeConfig, tiles: Tiles, few_keys: int) -> int:
    """The smallest whose CTAs have few keys, else the one that reads fastest; of those that have
    room and a block for each CTA.  1 without these."""
    possible = [
        c for c in SIZES if tiles.number <= _room(c, tiles.arch) and c <= _blocks(shared, tiles)
    ]
    small = [c for c in possible if _keys(replace(shared, cluster=c), tiles) <= few_keys]
    if small:
        return small[0]
    return min(possible, key=lambda c: _read_ns(shared, tiles, c), default=1)


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
    return config.B_c * config.key_bytes


def _is_wide(config: DecodeConfig) -> bool:
    return config.d_head == max(D_HEADS) and config.kv_type is KVType.SAME


def _is_larger(config: DecodeConfig) -> bool:
    return config.d_head > max(D_HEADS)


def _has_clusters(config: DecodeConfig) -> bool:
    """Whether clusters were measured with such K, V and rows."""
    if _is_larger(config):
        heads = (config.d_head, config.d_v)
        return heads in LARGER and config.kv_type is KVType.SAME and config.B_r == MMA_M
    return config.d_head == config.d_v and config.d_head in D_HEADS and config.B_r in MOST_NS
