"""The named sets of the `decode` family and its defaults.

tune    tiles that fill a multiprocessor's shared memory with keys under way, in every way to share
        and to combine
fast    those that were fastest somewhere in measurements on an H200, or close to it
all     both, sorted
e4m3    as fast, for K and V in e4m3
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import ceil

from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.constraints import smem_does_not_fit
from fa_tune.families.decode import clusters
from fa_tune.families.decode.bounds import Bounds
from fa_tune.families.decode.config import MMA_K, MMA_M, MOST_BLOCKS, Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.decode.reading import Tiles
from fa_tune.families.plan import TileOrder
from fa_tune.operations.forward.spec import most_keys_seen

ALLOWED_KEYS = "fast, tune, all, e4m3, or one config's short form"
TUNE_DTYPES = (DType.BF16, DType.FP16)
H200 = limits((9, 0))  # no shared memory is larger
# Of K and V in a ring: enough for the bandwidth of an H200, and more gained nothing.
RING_BYTES = 128 << 10
SMALL_RING_BYTES = 64 << 10
MANY_ROWS = 32  # of a tile of which a multiprocessor has several
ROWS = (16, 32, 64)  # of tiles
# A tile of twice as many rows as the largest usual one reads K and V half as often; it takes so
# many times as long, where there are so many for a multiprocessor.
DOUBLE_ROWS, DOUBLE_KEYS, DOUBLE_TIMES, DOUBLE_DENSITY = 128, 64, 1.75, 0.8
KEYS = 128  # of blocks
PAIRED_KEYS = 64  # of those of a CTA of two for a multiprocessor
SHORT_D_HEAD = 64
# Where those of a key are no more than these a block has twice the keys, if a tile has no more rows
# than these: others have no registers for it.
WIDE_KEYS, WIDE_KEY_BYTES, WIDE_ROWS = 256, 256, 32
WARPS = 8  # of a multiprocessor: more have too few registers
TILE_BYTES = 128 << 10  # that a multiprocessor reads while a CTA begins and ends a tile
# Where heads share lines of memory, CTAs that read them at the same time need each line once, if
# launches do not overlap.  With so much to read that gains more than `dependent`, with one CTA for
# a multiprocessor and with several or whole tiles.  All of this: benchmarks/tile_order_h200.txt.
IN_STEP_NS, SEVERAL_IN_STEP_NS = 20000, 4500
SEVERAL_TILES = 2  # for a multiprocessor: with more they are whole
FEW_TILE_KEYS, SOME_TILE_KEYS = 512, 1500  # of these
WIDE_D_HEAD = 48  # from this to 56 one large CTA for a multiprocessor has some keys, too
FOUR_D_HEAD = 88  # up to this, and above 128, few keys have four CTAs for a multiprocessor
# Parts of a tile times the quads of columns of its rows: up to so many one CTA combines as fast as
# all do together.  The kernel decides that anew when it knows lengths (decode/together.cuh, kFew).
FEW_QUADS = 6144


@dataclass(frozen=True)
class Heads:
    """What K and V are: head dimension of K, of V (0: the same), and element type."""

    d_head: int
    d_head_v: int = 0
    kv_type: KVType = KVType.SAME


HEADS = Heads(128)


def tile_of(
    heads: Heads,
    dtype: DType,
    rows: int,
    ring_bytes: int = RING_BYTES,
    *,
    keys: int = KEYS,
    ctas: int = 1,
) -> DecodeConfig:
    """A tile of `rows` rows whose ring fills `ring_bytes`, of `ctas` CTAs for a multiprocessor:
    `keys` in a block, fewer where two blocks do not fit, and a warp for each 16 rows and 16 keys,
    but no more than have registers."""
    row_warps = rows // MMA_M
    whole = DecodeConfig(dtype, heads.d_head, rows, keys, row_warps, row_warps=row_warps)
    whole = replace(whole, d_head_v=heads.d_head_v, kv_type=heads.kv_type)
    while keys > MMA_M and 2 * keys * whole.key_bytes > ring_bytes:
        keys //= 2
    most_warps = max(row_warps, WARPS // ctas if ctas != 3 else 4)
    warps = min(most_warps, row_warps * (keys // MMA_M))
    whole = replace(whole, B_c=keys, n_warps=warps, ctas_per_sm=ctas)
    found = replace(whole, stages=whole.stages_in(ring_bytes))
    # Rows in shared memory may be longer than those in memory.
    while found.stages > 2 and smem_does_not_fit(found.smem_bytes, H200, ctas):
        found = replace(found, stages=found.stages - 1)
    return found


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


def default_for(workload: Workload, arch: ArchLimits, bounds: Bounds) -> DecodeConfig:
    """The default of a workload; more rows than the largest tile has are several tiles in every
    rule."""
    w = workload
    heads = Heads(w.d_head, w.d_head_v, KVType(w.kv_e4m3))
    most_keys = max(1, most_keys_seen(w))
    n_keys = 0 if w.cached else most_keys
    tiles = Tiles(w.batch * w.kv_heads, n_keys, arch, bounds, most_keys, w.batch)
    if (double := _of_double_tiles(heads, w.dtype, w.rows_of_kv_head, tiles)) is not None:
        return double
    number, rows = w.row_tiles
    return default_config(heads, w.dtype, rows, tiles.split(number))


def double_tile(dtype: DType) -> DecodeConfig:
    """The largest tile, whose warps all divide the rows."""
    whole = tile_of(HEADS, dtype, DOUBLE_ROWS, keys=DOUBLE_KEYS)
    return _with_end(replace(whole, aligned=True, dependent=True))


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
    shared = _by_tiles(_of_few_keys(shared, tiles), tiles)
    if not tiles.keys and tiles.density >= tiles.bounds.counted and tiles.sequences != 1:
        shared = counting(shared)
    shared = _with_sectors(_with_end(shared), tiles)
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
            config = replace(_best(heads, dtype, tile_rows, ring_bytes), aligned=True)
            if constraints(config, tiles.arch) is None:
                return config
    return replace(tile_of(heads, dtype, MMA_M, SMALL_RING_BYTES), aligned=True)


def _best(heads: Heads, dtype: DType, rows: int, ring_bytes: int = RING_BYTES) -> DecodeConfig:
    """Tile of one CTA for a multiprocessor."""
    wide = tile_of(heads, dtype, rows, ring_bytes, keys=WIDE_KEYS)
    narrow = wide.key_bytes <= WIDE_KEY_BYTES
    return wide if narrow and rows <= WIDE_ROWS else tile_of(heads, dtype, rows, ring_bytes)


def _of_many_tiles(heads: Heads, dtype: DType, rows: int, tiles: Tiles) -> Iterator[DecodeConfig]:
    """Small CTAs, the best first; none where tiles are few.  Where lengths are known on the device
    alone they may differ, which two CTAs for a multiprocessor even out best."""
    two = of_two(heads, dtype, rows)
    few_bytes = not tiles.keys and tiles.most_keys * two.key_bytes <= tiles.bounds.small_bytes
    least = tiles.bounds.few_small if few_bytes else tiles.bounds.two
    if rows > MANY_ROWS or tiles.density < least:
        return
    if tiles.keys and tiles.density >= tiles.bounds.many and not _has_short_keys(heads):
        yield of_four(heads, dtype, rows)
    yield two


def of_two(heads: Heads, dtype: DType, rows: int) -> DecodeConfig:
    """A tile of which a multiprocessor has two CTAs."""
    return _of_ring(deeper_two(heads, dtype, rows), 64 << 10)


def deeper_two(heads: Heads, dtype: DType, rows: int) -> DecodeConfig:
    """That tile with as large a ring as has room."""
    keys = PAIRED_KEYS * (2 if _has_short_keys(heads) else 1)
    return tile_of(heads, dtype, rows, 96 << 10, keys=keys, ctas=2)


def _has_short_keys(heads: Heads) -> bool:
    """Whether K and V of a key have half as many 16-bit numbers as usual: then the same bytes are
    under way with blocks of twice the keys."""
    return heads.kv_type is KVType.SAME and max(heads.d_head, heads.d_head_v) <= SHORT_D_HEAD


def _of_ring(tile: DecodeConfig, ring_bytes: int) -> DecodeConfig:
    """Tile with no larger a ring, but of two blocks at least; as it is where keys of 16
    rows have few bytes, which takes more of them under way."""
    if tile.B_r == MMA_M and tile.key_bytes <= WIDE_KEY_BYTES:
        return tile
    return replace(tile, stages=min(tile.stages, tile.stages_in(ring_bytes)))


def _with_end(tile: DecodeConfig) -> DecodeConfig:
    """With the end that suits its rows."""
    return replace(tile, by_rows=tile.B_r > MMA_M and tile.combine is not Combine.ALL)


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
    if tile.B_r != MMA_M or not (tile.order or _is_aligned(tile, tiles)):
        return False
    parts = tile.ctas_per_sm == 1 and not tile.order
    return tiles.read_ns(tile) > (IN_STEP_NS if parts else SEVERAL_IN_STEP_NS)


def _is_aligned(tile: DecodeConfig, tiles: Tiles) -> bool:
    """Whether tiles begin where CTAs do, or at equal parts of them: csrc/core/shares.cpp."""
    ctas, blocks = tiles.arch.multiprocessors * tile.ctas_per_sm, ceil(tiles.keys / tile.B_c)
    parts = min(ctas // tiles.number, blocks)
    aligned = ceil(blocks / parts) if parts else ceil(tiles.number / ctas) * blocks
    return tile.aligned and 7 * aligned <= 8 * ceil(tiles.number * blocks / ctas)


def _by_tiles(tile: DecodeConfig, tiles: Tiles) -> DecodeConfig:
    """With many tiles these are whole, of small CTAs, where heads share lines or have one each;
    rows of several lines gain next to nothing."""
    gains = tile.d_head == tile.d_v == SHORT_D_HEAD or not tile.has_whole_lines
    same = tile.kv_type is KVType.SAME and tile.B_r == MMA_M
    if not (gains and same and tiles.keys and tiles.density > SEVERAL_TILES):
        return tile
    found = _of_whole_tiles(Heads(tile.d_head, tile.d_head_v), tile.dtype, tiles)
    return found if constraints(found, tiles.arch) is None else tile


def _of_whole_tiles(heads: Heads, dtype: DType, tiles: Tiles) -> DecodeConfig:
    """What was fastest in order, or near it at nearly every number of tiles."""
    widest = max(heads.d_head, heads.d_head_v)
    few, some = tiles.keys <= FEW_TILE_KEYS, tiles.keys <= SOME_TILE_KEYS
    one, three, four = _best(heads, dtype, MMA_M), of_three(heads, dtype), of_four(heads, dtype)
    if few and 3 < tiles.density <= 4:  # then all run at a time
        three = four
    if heads == Heads(SHORT_D_HEAD):
        two = of_two(heads, dtype, MMA_M)
        rounds = replace(two, aligned=True, order=TileOrder.ROUNDS)
        return replace(three, order=TileOrder.CTA_PER_TILE) if few else rounds
    if widest < SHORT_D_HEAD:
        found = three if few or (some and widest < WIDE_D_HEAD) else one
    elif widest % MMA_K or FOUR_D_HEAD < widest < HEADS.d_head:
        found = four if few and widest <= FOUR_D_HEAD else three if some else one
    else:
        found = four
    # Rows that are no whole sectors of 32 bytes: tiles begin at other times then.
    alone = widest % MMA_K and (widest > SHORT_D_HEAD or not some)
    return replace(found, order=TileOrder.CTA_PER_TILE if alone else TileOrder.WHOLE_ROUNDS)


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


def _of_half_keys(tile: DecodeConfig) -> DecodeConfig:
    """Tile of the same ring with blocks of half the keys."""
    return replace(tile, B_c=tile.B_c // 2, n_warps=tile.n_warps // 2, stages=2 * tile.stages)


def counting(tile: DecodeConfig) -> DecodeConfig:
    """Tile that counts for keys beside its own, whole blocks."""
    block_bytes = tile.B_c * tile.key_bytes
    return replace(tile, tile_keys=tile.B_c * ceil(TILE_BYTES / tile.ctas_per_sm / block_bytes))


def of_three(heads: Heads, dtype: DType) -> DecodeConfig:
    """A tile of 16 rows of which a multiprocessor has three CTAs."""
    return tile_of(heads, dtype, MMA_M, 64 << 10, keys=64, ctas=3)


def of_four(heads: Heads, dtype: DType, rows: int = MMA_M) -> DecodeConfig:
    """A tile of which a multiprocessor has four CTAs."""
    return _of_ring(deeper_four(heads, dtype, rows), 32 << 10)


def deeper_four(heads: Heads, dtype: DType, rows: int = MMA_M) -> DecodeConfig:
    """That tile with as large a ring as has room."""
    return tile_of(heads, dtype, rows, 48 << 10, keys=32, ctas=4)


def _fast(heads: Heads, dtype: DType) -> Iterator[DecodeConfig]:
    for rows in ROWS:
        best, deeper = (tile_of(heads, dtype, rows, kib << 10) for kib in (128, 192))
        wide = _best(heads, dtype, rows)
        for tile in _of_shares(heads, dtype, rows, (best, deeper, wide)):
            yield _with_end(tile)
            if not tile.has_whole_lines and not tile.order:
                yield replace(_with_end(tile), sectors=True)
        if rows <= WIDE_ROWS:
            yield replace(of_two(heads, dtype, rows), stages=2, cluster=2)
            yield from _of_clusters(wide, deeper if rows == MMA_M and wide == best else None)
    if heads == HEADS:
        yield double_tile(dtype)


def _of_shares(
    heads: Heads, dtype: DType, rows: int, tiles: Sequence[DecodeConfig]
) -> Iterator[DecodeConfig]:
    """Configs whose CTAs share all tiles: of these, a CTA for a multiprocessor, and
    smaller ones."""
    best, deeper, wide = tiles
    two = deeper_two(heads, dtype, rows)
    for tile in (best, deeper, two):
        yield replace(tile, aligned=True)
        yield tile
    for tile in (best, two, wide):
        yield replace(tile, aligned=True)
        yield replace(tile, aligned=True, dependent=True)
    for tile in (best, wide):
        together = replace(tile, aligned=True, combine=Combine.ALL)
        yield together
        yield replace(together, dependent=True)
        if rows <= MANY_ROWS:
            yield replace(together, dependent=True, shared_queries=True)
            yield replace(tile, aligned=True, dependent=True, shared_queries=True)
    if rows == MMA_M:
        yield replace(_of_half_keys(best), aligned=True, combine=Combine.ALL, dependent=True)
    smaller = [of_three(heads, dtype)] if rows == MMA_M else []
    smaller.append(replace(two, stages=2))
    if rows <= MANY_ROWS:
        smaller += [f(heads, dtype, rows) for f in (of_four, deeper_four)]
    for tile in smaller:
        yield replace(tile, aligned=True)
        yield replace(tile, aligned=True, dependent=True)
    if rows == MMA_M:
        yield replace(best, aligned=True, min_blocks=4)
    for tile in (best, two, *smaller):
        yield replace(counting(tile), aligned=True, dependent=True)
    if rows <= MANY_ROWS:
        for tile in (wide, of_two(heads, dtype, rows), *smaller):
            yield replace(tile, order=TileOrder.WHOLE_ROUNDS)
            yield replace(tile, order=TileOrder.CTA_PER_TILE)
    if rows > MMA_M:
        yield replace(two, aligned=True, dependent=True, tile_keys=4 * two.B_c)
    if rows == MMA_M:
        yield replace(two, stages=2, aligned=True, dependent=True, tile_keys=two.B_c)
        yield replace(of_three(heads, dtype), aligned=True, min_blocks=MOST_BLOCKS)
        yield replace(two, aligned=True, order=TileOrder.ROUNDS)


def _of_clusters(tile: DecodeConfig, deeper: DecodeConfig | None) -> Iterator[DecodeConfig]:
    for cluster in clusters.SIZES:
        yield replace(tile, cluster=cluster)
        yield replace(tile, cluster=cluster, dependent=True)
        yield replace(tile, cluster=cluster, shared_queries=True)
        yield replace(tile, cluster=cluster, dependent=True, shared_queries=True)
        if deeper is not None:
            yield replace(deeper, cluster=cluster)
            yield replace(deeper, cluster=cluster, dependent=True)
            yield replace(deeper, cluster=cluster, dependent=True, shared_queries=True)


def get_fast_configs(
    dtypes: Sequence[DType] = TUNE_DTYPES, *, heads: Heads = HEADS
) -> list[DecodeConfig]:
    """The `fast` set."""
    found = dict.fromkeys(c for dtype in dtypes for c in _fast(heads, dtype))
    return [c for c in found if constraints(c, H200) is None]


def _tune(heads: Heads, dtype: DType) -> Iterator[DecodeConfig]:
    yield from _fast(heads, dtype)
    for rows, keys, (kib, ctas) in itertools.product(
        ROWS, (32, 64, 128, 256), ((192, 1), (128, 1), (96, 2), (64, 2), (64, 3), (48, 4))
    ):
        tile = tile_of(heads, dtype, rows, kib << 10, keys=keys, ctas=ctas)
        yield tile
        for min_blocks in (1, 4, 16):
            yield replace(tile, min_blocks=min_blocks, aligned=True)
        yield replace(tile, aligned=True, combine=Combine.KERNEL)
        yield replace(tile, aligned=True, combine=Combine.ALL)
        for cluster in clusters.SIZES:
            yield replace(tile, cluster=cluster)


def get_tune_configs(
    dtypes: Sequence[DType] = TUNE_DTYPES, *, heads: Heads = HEADS
) -> list[DecodeConfig]:
    """The `tune` set."""
    found = dict.fromkeys(c for dtype in dtypes for c in _tune(heads, dtype))
    return [c for c in found if constraints(c, H200) is None]


def get_configs(
    key: str, *, dtypes: Sequence[DType] | None = None, heads: Heads = HEADS
) -> list[DecodeConfig]:
    """The set that `key` names; raises InvalidConfig, listing what is allowed."""
    if key == "fast":
        return get_fast_configs(dtypes or TUNE_DTYPES, heads=heads)
    if key == "tune":
        return get_tune_configs(dtypes or TUNE_DTYPES, heads=heads)
    if key == "all":
        return sorted(get_tune_configs(dtypes or TUNE_DTYPES, heads=heads))
    if key == "e4m3":
        narrow = replace(heads, kv_type=KVType.E4M3)
        return get_fast_configs(dtypes or TUNE_DTYPES, heads=narrow)
    raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {ALLOWED_KEYS}")
