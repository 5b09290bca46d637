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
from fa_tune.core.workload import DType
from fa_tune.families.decode import clusters
from fa_tune.families.decode.config import (
    MMA_M,
    MOST_BLOCKS,
    Combine,
    DecodeConfig,
    KVType,
    constraints,
)

ALLOWED_KEYS = "fast, tune, all, e4m3, or one config's short form"
TUNE_DTYPES = (DType.BF16, DType.FP16)
H200 = limits((9, 0))  # no shared memory is larger
# Of K and V in a ring: enough for the bandwidth of an H200, and more gained nothing.
RING_BYTES = 128 << 10
SMALL_RING_BYTES = 64 << 10
# So many tiles are several for each CTA, or two for a multiprocessor.  With few keys they end so
# often that smaller CTAs gain.
MANY_TILES, SEVERAL_TILES, MANY_TILES_ROWS, LONG_KEYS = 400, 250, 32, 4096
EARLY_BYTES = 300_000_000  # of K and V: with more a launch gains nothing by beginning early
ROWS = (16, 32, 64)  # of tiles
KEYS = 128  # of blocks
# Where those of a key are no more than these a block has twice the keys, if a tile has no more rows
# than these: others have no registers for it.
WIDE_KEYS, WIDE_KEY_BYTES, WIDE_ROWS = 256, 256, 32
WARPS = 8  # of a multiprocessor: more have too few registers
# That a multiprocessor reads while a CTA begins and ends a tile, of 16 rows or more.
TILE_KEYS, LARGE_TILE_KEYS = 256, 384
# Fewer tiles are in parts anyway; what is between tiles counts little.
COUNTED_TILES = 100


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
    key_bytes = (whole.d_head + whole.d_v) * whole.kv_bytes
    while keys > MMA_M and 2 * keys * key_bytes > ring_bytes:
        keys //= 2
    most_warps = max(row_warps, WARPS // ctas if ctas != 3 else 4)
    warps = min(most_warps, row_warps * (keys // MMA_M))
    stages = max(2, min(8, ring_bytes // (keys * key_bytes)))
    return replace(whole, B_c=keys, n_warps=warps, stages=stages, ctas_per_sm=ctas)


def default_config(
    heads: Heads,
    dtype: DType,
    rows: int = MMA_M,
    arch: ArchLimits | None = None,
    *,
    tiles: int = 1,
    n_keys: int | None = None,
) -> DecodeConfig:
    """What was fastest or near it on an H200 at nearly every length for so many rows, of which more
    than fit are several tiles; a smaller ring where `arch` has no room for that one, and without
    `arch` one for every device.  Clusters where they are faster for so many tiles of `n_keys`,
    which None leaves open, since the device alone knows them; where launches can, they begin before
    the one in front is done."""
    if arch is None:
        return replace(tile_of(heads, dtype, MMA_M, SMALL_RING_BYTES), aligned=True)
    shared = _of_equal_shares(heads, dtype, rows, arch, tiles, n_keys)
    clustered = clusters.default(shared, arch, tiles, n_keys)
    if clustered is not None:
        return clustered
    if n_keys is None and tiles >= COUNTED_TILES:
        shared = counting(shared)
    key_bytes = (shared.d_head + shared.d_v) * shared.kv_bytes
    early = replace(shared, dependent=tiles * (n_keys or 0) * key_bytes <= EARLY_BYTES)
    return early if constraints(early, arch) is None else shared


def _of_equal_shares(
    heads: Heads, dtype: DType, rows: int, arch: ArchLimits, tiles: int, n_keys: int | None
) -> DecodeConfig:
    """The default of CTAs that share all tiles.  With many tiles, several for a CTA, small CTAs:
    one loads while another is between two tiles."""
    fitting = next((r for r in ROWS if r >= rows), ROWS[-1])
    small = _of_many_tiles(heads, dtype, fitting, tiles, n_keys)
    if small is not None and constraints(replace(small, aligned=True), arch) is None:
        return replace(small, aligned=True)
    for ring_bytes in (RING_BYTES, SMALL_RING_BYTES):
        for tile_rows in (r for r in reversed(ROWS) if r <= fitting):
            config = replace(_best(heads, dtype, tile_rows, ring_bytes), aligned=True)
            if constraints(config, arch) is None:
                return config
    return replace(tile_of(heads, dtype, MMA_M, SMALL_RING_BYTES), aligned=True)


def _best(heads: Heads, dtype: DType, rows: int, ring_bytes: int = RING_BYTES) -> DecodeConfig:
    """Of one CTA for a multiprocessor."""
    wide = tile_of(heads, dtype, rows, ring_bytes, keys=WIDE_KEYS)
    narrow = (wide.d_head + wide.d_v) * wide.kv_bytes <= WIDE_KEY_BYTES
    return wide if narrow and rows <= WIDE_ROWS else tile_of(heads, dtype, rows, ring_bytes)


def _of_many_tiles(
    heads: Heads, dtype: DType, rows: int, tiles: int, n_keys: int | None
) -> DecodeConfig | None:
    """Small CTAs; None where tiles are few.  Where lengths are known on the device alone they
    differ, which three CTAs for a multiprocessor even out best, of 32 rows two."""
    if n_keys is None and rows == MMA_M:
        return of_three(heads, dtype) if tiles >= MANY_TILES else None
    if n_keys is None:
        n_keys = LONG_KEYS
    if rows > MANY_TILES_ROWS or tiles < (SEVERAL_TILES if n_keys < LONG_KEYS else MANY_TILES):
        return None
    if n_keys < LONG_KEYS and tiles >= MANY_TILES:
        return of_four(heads, dtype, rows)
    return of_two(heads, dtype, rows)


def of_two(heads: Heads, dtype: DType, rows: int) -> DecodeConfig:
    """A tile of which a multiprocessor has two CTAs."""
    return tile_of(heads, dtype, rows, 96 << 10, keys=64, ctas=2)


def counting(tile: DecodeConfig) -> DecodeConfig:
    """The same with tiles that count for keys beside their own, whole blocks."""
    keys = (TILE_KEYS if tile.B_r == MMA_M else LARGE_TILE_KEYS) / tile.ctas_per_sm
    return replace(tile, tile_keys=tile.B_c * ceil(keys / tile.B_c))


def of_three(heads: Heads, dtype: DType) -> DecodeConfig:
    """A tile of 16 rows of which a multiprocessor has three CTAs."""
    return tile_of(heads, dtype, MMA_M, 64 << 10, keys=64, ctas=3)


def of_four(heads: Heads, dtype: DType, rows: int = MMA_M) -> DecodeConfig:
    """A tile of which a multiprocessor has four CTAs."""
    return tile_of(heads, dtype, rows, 48 << 10, keys=32, ctas=4)


def _fast(heads: Heads, dtype: DType) -> Iterator[DecodeConfig]:
    for rows in ROWS:
        best = tile_of(heads, dtype, rows)
        deeper = tile_of(heads, dtype, rows, 192 << 10)
        two = of_two(heads, dtype, rows)
        for tile in (best, deeper, two):
            yield replace(tile, aligned=True)
            yield tile
        for tile in (best, two):
            yield replace(tile, aligned=True, dependent=True)
        wide = _best(heads, dtype, rows)
        if wide != best:
            yield replace(wide, aligned=True)
            yield replace(wide, aligned=True, dependent=True)
        smaller = [of_three(heads, dtype)] if rows == MMA_M else []
        if rows <= MANY_TILES_ROWS:
            smaller.append(of_four(heads, dtype, rows))
        for tile in smaller:
            yield replace(tile, aligned=True)
            yield replace(tile, aligned=True, dependent=True)
        if rows == MMA_M:
            yield replace(best, aligned=True, min_blocks=4)
        for tile in (best, two, *smaller):
            yield replace(counting(tile), aligned=True, dependent=True)
        if rows == MMA_M:
            yield replace(of_three(heads, dtype), aligned=True, min_blocks=MOST_BLOCKS)
        if rows <= WIDE_ROWS:
            yield replace(two, stages=2, cluster=2)
            yield from _of_clusters(wide, deeper if rows == MMA_M and wide == best else None)


def _of_clusters(tile: DecodeConfig, deeper: DecodeConfig | None) -> Iterator[DecodeConfig]:
    for cluster in clusters.ROOM:
        yield replace(tile, cluster=cluster)
        yield replace(tile, cluster=cluster, dependent=True)
        if deeper is not None:
            yield replace(deeper, cluster=cluster)
            yield replace(deeper, cluster=cluster, dependent=True)


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
        for cluster in clusters.ROOM:
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
