"""Where a cluster or a CTA for each tile is faster than CTAs that share all tiles."""

from __future__ import annotations

from dataclasses import replace

from fa_tune.core.arch import ArchLimits
from fa_tune.families.cluster_room import clusters_at_once
from fa_tune.families.decode.bounds import Bounds
from fa_tune.families.decode.config import MMA_M, MOST_BLOCKS, Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.decode.reading import Tiles

D_HEADS = (64, 128)  # of K and of V
LARGER = ((192, 128), (256, 256))  # of K and of V, measured with 16 rows and clusters alone
SIZES = (2, 4, 8)  # CTAs of a cluster
SMALL_RING_BYTES, SMALL_CTA_WARPS = 64 << 10, 4
SHARING_CTAS = 4  # for a multiprocessor, of many tiles


def default(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """`shared`, whose CTAs share all tiles, with a cluster or a CTA for each of these, where that
    is faster; else None, also where it may be much slower than equal shares."""
    if not tiles.bounds.measured or not _has_clusters(shared):
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
        cluster = _cluster(shared, longest, _few_keys(longest, longest.bounds.few_uneven_tiles))
        found = replace(_with_cluster(shared, longest, cluster), dependent=True)
    even = tile_bytes <= longest.bounds.most_uneven_bytes * found.cluster
    return found if found.cluster > 1 and even else None


def _of_clusters(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """A cluster for each, a CTA for a multiprocessor."""
    blocks = -(-tiles.keys // shared.B_c)
    read_ns = replace(tiles, keys=blocks * shared.B_c).read_ns(shared)
    most_ns = tiles.bounds.most_ns * MMA_M / shared.B_r / (2 if _is_larger(shared) else 1)
    if not blocks or (read_ns > most_ns and not _fill(shared, tiles)):
        return None
    shared, tiles = _halved(shared, tiles)
    cluster = _cluster(shared, tiles, _few_keys(tiles, tiles.bounds.few_tiles))
    if cluster == 1:
        return None
    deep = _wants_depth(replace(shared, cluster=cluster), tiles)
    deeper = replace(shared, stages=shared.stages + 1) if deep else shared
    found = _with_cluster(deeper, tiles, cluster)
    few = _keys(found, tiles) <= tiles.bounds.few_keys
    return found if few or _gains(found, shared, tiles) else None


def _halved(shared: DecodeConfig, tiles: Tiles) -> tuple[DecodeConfig, Tiles]:
    """Tiles of half the rows, twice as many, where these are faster in clusters."""
    if shared.B_r > MMA_M and (halves := _halves(shared, tiles)) is not None:
        return halves, tiles.split(2)
    return shared, tiles


def _with_cluster(shared: DecodeConfig, tiles: Tiles, cluster: int) -> DecodeConfig:
    """`shared` with clusters, whose launch begins early where that gains."""
    room = _room(cluster, tiles.arch)
    dependent = (
        _blocks(shared, tiles) * _block_bytes(shared) <= tiles.bounds.dependent_bytes
        or 2 * tiles.number <= room
        or tiles.number >= tiles.bounds.full * room
    )
    found = replace(shared, cluster=cluster, aligned=False, combine=Combine.LAST)
    return replace(found, dependent=True) if dependent else found


def of_sixteen_rows(tile: DecodeConfig) -> DecodeConfig:
    """Tile of the same keys for 16 rows, whose warps divide no rows."""
    return replace(tile, B_r=MMA_M, row_warps=1, n_warps=min(tile.n_warps, tile.B_c // MMA_M))


def all_at_once(config: DecodeConfig, tiles: int, arch: ArchLimits) -> bool:
    """Whether the clusters of so many tiles run at a time."""
    return tiles <= config.ctas_per_sm * _room(config.cluster, arch)


def _room(cluster: int, arch: ArchLimits) -> int:
    return clusters_at_once(cluster, arch.multiprocessors)


def _of_small_ctas(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """Config of as many CTAs for a multiprocessor as such tiles suit."""
    tile_bytes, bounds = tiles.keys * shared.key_bytes, tiles.bounds
    if tile_bytes < bounds.small_cta_bytes or _is_larger(shared):
        return None
    few_keys = tile_bytes <= bounds.most_small_cta_bytes
    whole = shared.B_r == MMA_M and shared.kv_type is KVType.SAME  # else bound by widening
    if whole and _is_wide(shared) and _idle(tiles) > bounds.idle:
        few = tile_bytes <= bounds.idle_bytes
        return _of_three(shared) if few else _with_cluster(_large(shared), tiles, 2)
    if _is_large(shared, tiles):
        return _of_two(shared)
    if (
        tiles.number > _room(2, tiles.arch)
        and tiles.density <= (bounds.paired if shared.B_r == MMA_M else bounds.paired_32)
        and (few_keys or tiles.density >= bounds.few_paired)
    ):
        return _of_two(shared)
    if whole and few_keys and bounds.whole <= tiles.density < bounds.two:
        return _of_three(shared)
    return None


def _idle(tiles: Tiles) -> float:
    """Twice the places of four small CTAs for a multiprocessor over tiles for which once is too
    few, else 0: the more, the more of equal shares are parts of several tiles."""
    places = SHARING_CTAS * tiles.arch.multiprocessors
    return 2 * places / tiles.number if places < tiles.number <= 2 * places else 0.0


def _large(shared: DecodeConfig) -> DecodeConfig:
    """The tile of one CTA for a multiprocessor."""
    keys = 2 * _small(shared).B_c
    return replace(shared, B_c=keys, n_warps=2 * SMALL_CTA_WARPS, stages=3, ctas_per_sm=1)


def _of_three(shared: DecodeConfig) -> DecodeConfig:
    """A CTA for each tile, three for a multiprocessor."""
    return replace(_small(shared), ctas_per_sm=3, min_blocks=MOST_BLOCKS)


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
    return _is_wide(config) and tiles.bounds.full * room <= tiles.number <= room


def _is_large(config: DecodeConfig, tiles: Tiles) -> bool:
    """Whether there is so much to read that clusters of 2, two CTAs for a multiprocessor, are
    faster than shares."""
    if not _is_wide(config) or tiles.read_ns(config) < tiles.bounds.large_ns:
        return False
    if tiles.density < tiles.bounds.some_tiles:
        return tiles.bounds.full <= tiles.density <= 1.0
    last = tiles.number % tiles.arch.multiprocessors / tiles.arch.multiprocessors
    # Both CTAs of the last ones may be on one multiprocessor, and read no faster than one.
    alone = tiles.bytes_per_ns / tiles.arch.multiprocessors / tiles.bounds.cta_bytes_per_ns
    return last == 0.0 or alone - last <= tiles.bounds.most_tail * tiles.density


def _few_keys(tiles: Tiles, few_tiles: float) -> float:
    """Up to so many keys of a CTA are few; half as many where tiles are."""
    return tiles.bounds.few_keys / (2 if tiles.number <= few_tiles else 1)


def _blocks(config: DecodeConfig, tiles: Tiles) -> int:
    return -(-tiles.keys // config.B_c)


def _keys(config: DecodeConfig, tiles: Tiles) -> int:
    """Keys of a CTA of a cluster."""
    return -(-_blocks(config, tiles) // config.cluster) * config.B_c


def _gains(found: DecodeConfig, shared: DecodeConfig, tiles: Tiles) -> bool:
    """Whether clusters take less time than equal shares with `dependent`."""
    parts = min(tiles.arch.multiprocessors // tiles.number, _blocks(shared, tiles))
    saved_ns = (tiles.bounds.parts_ns + tiles.bounds.part_ns * parts) * shared.B_r / MMA_M
    if shared.combine is Combine.ALL:
        saved_ns = tiles.bounds.together_ns * MMA_M / shared.B_r
    if not found.dependent:
        saved_ns -= tiles.bounds.dependent_ns
    read_ns = _read_ns(found, tiles, found.cluster)
    return read_ns < _read_ns(shared, tiles, parts) + saved_ns


def _halves(shared: DecodeConfig, tiles: Tiles) -> DecodeConfig | None:
    """The tile of half of the rows, if clusters of two of them have few keys for each CTA."""
    if shared.kv_type is not KVType.SAME:
        return None
    half = of_sixteen_rows(shared)
    cluster = _cluster(half, tiles.split(2), tiles.bounds.few_keys)
    keys = _keys(replace(half, cluster=cluster), tiles)
    few = cluster > 1 and keys * half.key_bytes <= tiles.bounds.half_bytes
    return half if few else None


def _cluster(shared: DecodeConfig, tiles: Tiles, few_keys: float) -> int:
    """The smallest whose CTAs have few keys, else the one that reads fastest; of those that have
    room, and a block for more than half of the CTAs.  1 without these."""
    blocks = _blocks(shared, tiles)
    possible = [c for c in SIZES if tiles.number <= _room(c, tiles.arch) and c < 2 * blocks]
    small = [c for c in possible if _keys(replace(shared, cluster=c), tiles) <= few_keys]
    if small:
        return small[0]
    return min(possible, key=lambda c: _read_ns(shared, tiles, c), default=1)


def _wants_depth(config: DecodeConfig, tiles: Tiles) -> bool:
    if config.B_r != MMA_M or not _is_wide(config):
        return False
    few = tiles.number * config.cluster * tiles.bounds.cta_bytes_per_ns < tiles.bytes_per_ns
    return few and _blocks(config, tiles) > config.cluster * tiles.bounds.deep_blocks


def _read_ns(config: DecodeConfig, tiles: Tiles, parts: int) -> float:
    """What CTAs take to read the keys of tiles that are in so many parts."""
    n_bytes = -(-_blocks(config, tiles) // parts) * _block_bytes(config)
    return n_bytes / min(
        _cta_bytes_per_ns(config, tiles.bounds), tiles.bytes_per_ns / (tiles.number * parts)
    )


def _cta_bytes_per_ns(config: DecodeConfig, bounds: Bounds) -> float:
    if config.kv_type is KVType.E4M3:
        return bounds.e4m3_cta_bytes_per_ns
    return bounds.cta_bytes_per_ns if config.stages == 2 else bounds.deep_cta_bytes_per_ns


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
    return config.d_head == config.d_v and config.d_head in D_HEADS and config.B_r <= 2 * MMA_M
