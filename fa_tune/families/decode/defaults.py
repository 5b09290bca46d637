"""Defaults of the `decode` family: what was measured of many tiles, and rules, whose bounds
`tools/fit_decode.py` fits to recordings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

from fa_tune.core.arch import ArchLimits
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode import clusters, many_tiles
from fa_tune.families.decode.bounds import Bounds
from fa_tune.families.decode.config import MMA_M, Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.decode.many_tiles import Way
from fa_tune.families.decode.reading import Tiles
from fa_tune.families.decode.tiles import (
    DOUBLE_ROWS,
    HEADS,
    MANY_ROWS,
    RING_BYTES,
    ROWS,
    SMALL_RING_BYTES,
    Heads,
    counting,
    double_tile,
    has_short_keys,
    of_four,
    of_one,
    of_small_ring,
    of_two,
    tile_of,
    with_end,
)
from fa_tune.families.plan import TileOrder
from fa_tune.operations.forward.spec import most_keys_seen

# A tile of twice as many rows as the largest usual one reads K and V half as often; it takes so
# many times as long, where there are so many for a multiprocessor.
DOUBLE_TIMES, DOUBLE_DENSITY = 1.75, 0.8
# Where heads share lines of memory, CTAs that read them at the same time need each line once, if
# launches do not overlap.  With so much to read that gains more than `dependent`, with one CTA for
# a multiprocessor and with several: benchmarks/tile_order_h200.txt.
IN_STEP_NS, SEVERAL_IN_STEP_NS = 20000, 4500
# Where the device alone knows lengths, a CTA for each tile is faster than equal shares, however
# unlike lengths are, if no tile has more keys or bytes than these, or twice the bytes where there
# are many tiles for a multiprocessor.  benchmarks/cached_tiles_h200.txt
CACHE_KEYS, CACHE_BYTES, MANY_CACHE_TILES = 1024, 256 << 10, 5
# Parts of a tile times the quads of columns of its rows: up to so many one CTA combines as fast as
# all do together.  The kernel decides that anew when it knows lengths (decode/together.cuh, kFew).
FEW_QUADS = 6144


def default_for(workload: Workload, arch: ArchLimits, bounds: Bounds) -> DecodeConfig:
    """The default of a workload: what was measured, else what rules find."""
    return _of_many(workload, arch, bounds) or by_rules(workload, arch, bounds)


def by_rules(workload: Workload, arch: ArchLimits, bounds: Bounds) -> DecodeConfig:
    """What rules find; more rows than the largest tile has are several tiles in each."""
    w, (heads, tiles) = workload, _tiles_of(workload, arch, bounds)
    if (double := _of_double_tiles(heads, w.dtype, w.rows_of_kv_head, tiles)) is not None:
        return double
    number, rows = w.row_tiles
    return default_config(heads, w.dtype, rows, tiles.split(number))


def default_config(
    heads: Heads, dtype: DType, rows: int = MMA_M, tiles: Tiles | None = None
) -> DecodeConfig:
    """What was fastest or near it at nearly every length for so many rows, of which more than fit
    are several tiles; a smaller ring where the GPU has no room for that one, and without `tiles`
    one for every device.  Clusters where they are faster; where launches can, they begin before the
    one in front is done."""
    if tiles is None:
        return replace(tile_of(heads, dtype, MMA_M, SMALL_RING_BYTES), aligned=True)
    rows_of_tile, smaller = _of_small_tiles(tile_of(heads, dtype, MANY_ROWS), rows, tiles)
    found = _of_tiles(heads, dtype, rows_of_tile, smaller)
    return _with_queries(found, rows, tiles)


def _tiles_of(workload: Workload, arch: ArchLimits, bounds: Bounds) -> tuple[Heads, Tiles]:
    """The heads of a workload, and its tiles, one for each."""
    w, most_keys = workload, max(1, most_keys_seen(workload))
    n_keys = 0 if w.cached else most_keys
    tiles = Tiles(w.batch * w.kv_heads, n_keys, arch, bounds, most_keys, w.batch)
    return Heads(w.d_head, w.d_head_v, KVType(w.kv_e4m3)), tiles


def _of_many(workload: Workload, arch: ArchLimits, bounds: Bounds) -> DecodeConfig | None:
    """What was the fastest of as many tiles of 16 rows, if that is not what rules find."""
    heads, tiles = _tiles_of(workload, arch, bounds)
    if workload.rows_of_kv_head > MMA_M or tiles.density < 1:
        return None
    way = _way_of_lengths(heads, tiles) if tiles.keys else _way_of_cache(heads, tiles)
    if way == many_tiles.RULES:
        return None
    tile = of_small_ring(heads, workload.dtype, way.ctas_per_sm)
    found = replace(tile, order=way.order, dependent=way.dependent)
    fitting = (c for c in (found, replace(found, dependent=False)) if _fits(c, arch))
    return next(fitting, None)


def _way_of_lengths(heads: Heads, tiles: Tiles) -> Way:
    """How CTAs have tiles whose lengths the host knows."""
    if heads.kv_type is not KVType.SAME:
        return many_tiles.RULES
    here = many_tiles.Point(tiles.density, tiles.keys)
    return many_tiles.fastest(max(heads.d_head, heads.d_head_v), here)


def _way_of_cache(heads: Heads, tiles: Tiles) -> Way:
    """How CTAs have tiles whose lengths the device alone knows."""
    key_bytes = of_small_ring(heads, DType.BF16, 1).key_bytes
    most_bytes = CACHE_BYTES * (2 if tiles.density >= MANY_CACHE_TILES else 1)
    if tiles.most_keys > min(CACHE_KEYS, most_bytes // key_bytes):
        return many_tiles.RULES
    ctas = 2 if tiles.density <= 2 else 3  # two: then all run at a time
    return Way(ctas, TileOrder.CTA_PER_TILE, dependent=True)


def _fits(config: DecodeConfig, arch: ArchLimits) -> bool:
    return constraints(config, arch) is None


def _of_double_tiles(heads: Heads, dtype: DType, rows: int, tiles: Tiles) -> DecodeConfig | None:
    """Such tiles, where they are faster; `tiles` have all of a head's rows."""
    parts = ceil(rows / DOUBLE_ROWS)
    faster = DOUBLE_TIMES * parts <= ceil(rows / ROWS[-1])
    enough = tiles.split(parts).density >= DOUBLE_DENSITY
    if heads != HEADS or not tiles.bounds.measured or not (faster and enough):
        return None
    found = double_tile(dtype) if tiles.keys else counting(double_tile(dtype))
    return found if constraints(found, tiles.arch) is None else None


def _of_tiles(heads: Heads, dtype: DType, rows: int, tiles: Tiles) -> DecodeConfig:
    """The default of tiles with so many rows each, whose warps load their queries themselves."""
    shared = _of_equal_shares(heads, dtype, rows, tiles)
    tiles = tiles.split(ceil(rows / shared.B_r))  # where one of all rows does not fit
    shared = _with_combine(shared, rows, tiles)
    clustered = clusters.default(shared, tiles)
    if clustered is not None:
        return clustered
    shared = _of_few_keys(shared, tiles)
    if not tiles.keys and tiles.density >= tiles.bounds.counted and tiles.sequences != 1:
        shared = counting(shared)
    shared = _with_sectors(with_end(shared), tiles)
    overlaps = tiles.read_ns(shared) <= tiles.bounds.early_ns and not _in_step(shared, tiles)
    early = replace(shared, dependent=overlaps)
    return early if constraints(early, tiles.arch) is None else shared


def _of_small_tiles(half: DecodeConfig, rows: int, tiles: Tiles) -> tuple[int, Tiles]:
    """Two tiles, `half`, in place of one of more than 32 rows, where each CTA has few keys: to read
    them twice is faster than larger tiles."""
    if rows <= MANY_ROWS or not tiles.keys or not _is_measured(half):
        return rows, tiles
    halves, sms = tiles.split(2), tiles.arch.multiprocessors
    n_bytes = halves.number * halves.keys * half.key_bytes
    few = 2 * halves.number <= 3 * sms and n_bytes <= tiles.bounds.small_tile_bytes * sms
    return (MANY_ROWS, halves) if few else (rows, tiles)


def _is_measured(tile: DecodeConfig) -> bool:
    """Whether rules for few keys were measured for such K and V."""
    same = tile.d_v == tile.d_head and tile.kv_type is KVType.SAME
    return same and tile.d_head in clusters.D_HEADS


def _with_queries(config: DecodeConfig, rows: int, tiles: Tiles) -> DecodeConfig:
    """With queries that warps share, where there is little to read: their way from memory is a part
    of the time then, if there are several rows of them."""
    alone = config.ctas_per_sm == 1 and config.tile_keys == 0
    measured = _is_measured(config) and tiles.bounds.measured
    if config.B_r > MANY_ROWS or not alone or not measured:
        return config
    own_rows = min(rows, config.B_r)
    bounds = tiles.bounds
    most_ns = bounds.queries_ns if config.B_r == MMA_M else bounds.queries_32_ns
    if own_rows < bounds.some_queries:
        most_ns = most_ns / 2 if own_rows >= bounds.few_queries else 0.0
    read_ns = replace(tiles, keys=tiles.keys or tiles.most_keys).read_ns(config)
    found = replace(config, shared_queries=read_ns <= most_ns)
    return found if constraints(found, tiles.arch) is None else config


def _of_equal_shares(heads: Heads, dtype: DType, rows: int, tiles: Tiles) -> DecodeConfig:
    """The default of CTAs that share all tiles.  With many tiles, several for a CTA, small CTAs:
    one loads while another is between two tiles."""
    fitting = next((r for r in ROWS if r >= rows), ROWS[-1])
    for small in _of_many_tiles(heads, dtype, fitting, tiles):
        if constraints(replace(small, aligned=True), tiles.arch) is None:
            return replace(small, aligned=True)
    for ring_bytes in (RING_BYTES, SMALL_RING_BYTES):
        for tile_rows in (r for r in reversed(ROWS) if r <= fitting):
            config = replace(of_one(heads, dtype, tile_rows, ring_bytes), aligned=True)
            if constraints(config, tiles.arch) is None:
                return config
    return replace(tile_of(heads, dtype, MMA_M, SMALL_RING_BYTES), aligned=True)


def _of_many_tiles(heads: Heads, dtype: DType, rows: int, tiles: Tiles) -> Iterator[DecodeConfig]:
    """Small CTAs, the best first; none where tiles are few.  Where lengths are known on the device
    alone they may differ, which two CTAs for a multiprocessor even out best."""
    two = of_two(heads, dtype, rows)
    few_bytes = not tiles.keys and tiles.most_keys * two.key_bytes <= tiles.bounds.small_bytes
    least = tiles.bounds.few_small if few_bytes else tiles.bounds.two
    if rows > MANY_ROWS or tiles.density < least:
        return
    if tiles.keys and tiles.density >= tiles.bounds.many and not has_short_keys(heads):
        yield of_four(heads, dtype, rows)
    yield two


def _with_sectors(tile: DecodeConfig, tiles: Tiles) -> DecodeConfig:
    """With sectors, where heads share lines that L2 does not keep from one to the next: CTAs with
    several tiles each are in different heads' keys, and so are tiles of unlike lengths.  Rows that
    are no whole 64 bytes, what memory gives at a time, are faster so anyway."""
    if tile.has_whole_lines or tile.kv_type is not KVType.SAME or _in_step(tile, tiles):
        return tile
    apart = not tiles.keys or tiles.density > tile.ctas_per_sm
    odd = any(d * tile.kv_bytes % 64 for d in (tile.d_head, tile.d_v))
    return replace(tile, sectors=apart or odd)


def _in_step(tile: DecodeConfig, tiles: Tiles) -> bool:
    """Whether CTAs read heads that share lines at the same time, with enough to gain by that."""
    if tile.has_whole_lines or tile.kv_type is not KVType.SAME or not tiles.keys:
        return False
    if tile.B_r != MMA_M or not _is_aligned(tile, tiles):
        return False
    least_ns = IN_STEP_NS if tile.ctas_per_sm == 1 else SEVERAL_IN_STEP_NS
    return tiles.read_ns(tile) > least_ns


def _is_aligned(tile: DecodeConfig, tiles: Tiles) -> bool:
    """Whether tiles begin where CTAs do, or at equal parts of them: csrc/core/shares.cpp."""
    ctas, blocks = tiles.arch.multiprocessors * tile.ctas_per_sm, ceil(tiles.keys / tile.B_c)
    parts = min(ctas // tiles.number, blocks)
    aligned = ceil(blocks / parts) if parts else ceil(tiles.number / ctas) * blocks
    return tile.aligned and 7 * aligned <= 8 * ceil(tiles.number * blocks / ctas)


def _with_combine(tile: DecodeConfig, rows: int, tiles: Tiles) -> DecodeConfig:
    """The tile with its parts combined by all of its CTAs, where there are many parts: with few
    tiles, as few heads of K and V make."""
    parts = tiles.arch.multiprocessors * tile.ctas_per_sm // tiles.number
    if tiles.keys:
        parts = min(parts, ceil(tiles.keys / tile.B_c))
    quads = min(rows, tile.B_r) * tile.d_v // 4
    return replace(tile, combine=Combine.ALL) if parts * quads > FEW_QUADS else tile


def _of_few_keys(tile: DecodeConfig, tiles: Tiles) -> DecodeConfig:
    """Two tiles of 16 rows in place of one of 32, if CTAs that combine together have few keys."""
    if tile.B_r != 2 * MMA_M or not tiles.keys or not _is_measured(tile):
        return tile
    n_bytes = tiles.number * tiles.keys * tile.key_bytes
    half = replace(clusters.of_sixteen_rows(tile), combine=Combine.LAST)
    half = _with_combine(half, MMA_M, tiles.split(2))
    few = n_bytes <= tiles.bounds.few_key_bytes * tiles.arch.multiprocessors
    fits = few and half.combine is Combine.ALL and constraints(half, tiles.arch) is None
    return half if fits else tile
