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

from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.decode import clusters
from fa_tune.families.decode.config import (
    MMA_M,
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
MANY_TILES = 400
ROWS = (16, 32, 64)  # of tiles
KEYS = 128  # of blocks
# With e4m3 a block has so many keys, which are as many bytes as without, where a tile has no more
# rows than these: others have no registers for it.
WIDE_KEYS, WIDE_ROWS = 256, 32
WARPS = 8  # of a multiprocessor: more have too few registers


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
    `arch` one for every device.  With many tiles, several for a CTA, small CTAs: one loads while
    another is between two tiles.  Clusters where they are faster for so many tiles of `n_keys`,
    which None leaves open."""
    fitting = next((r for r in ROWS if r >= rows), ROWS[-1])
    if arch is not None:
        small = replace(of_four(heads, dtype), aligned=True)
        if rows <= MMA_M and tiles >= MANY_TILES and constraints(small, arch) is None:
            return small
        for ring_bytes in (RING_BYTES, SMALL_RING_BYTES):
            for tile_rows in (r for r in reversed(ROWS) if r <= fitting):
                wide = heads.kv_type is KVType.E4M3 and tile_rows <= WIDE_ROWS
                keys = WIDE_KEYS if wide else KEYS
                tile = tile_of(heads, dtype, tile_rows, ring_bytes, keys=keys)
                config = replace(tile, aligned=True)
                if constraints(config, arch) is None:
                    return clusters.default(config, arch, tiles, n_keys) or config
    return replace(tile_of(heads, dtype, MMA_M, SMALL_RING_BYTES), aligned=True)


def of_four(heads: Heads, dtype: DType) -> DecodeConfig:
    """A tile of 16 rows of which a multiprocessor has four CTAs."""
    return tile_of(heads, dtype, MMA_M, 48 << 10, keys=32, ctas=4)


def _fast(heads: Heads, dtype: DType) -> Iterator[DecodeConfig]:
    for rows in ROWS:
        best = tile_of(heads, dtype, rows)
        deeper = tile_of(heads, dtype, rows, 192 << 10)
        of_two = tile_of(heads, dtype, rows, 96 << 10, keys=64, ctas=2)
        for tile in (best, deeper, of_two):
            yield replace(tile, aligned=True)
            yield tile
        for tile in (best, of_two):
            yield replace(tile, aligned=True, dependent=True)
        if heads.kv_type is KVType.E4M3 and rows <= WIDE_ROWS:
            wide = tile_of(heads, dtype, rows, keys=WIDE_KEYS)
            yield replace(wide, aligned=True)
            yield replace(wide, aligned=True, dependent=True)
        if rows == MMA_M:
            yield replace(tile_of(heads, dtype, rows, 64 << 10, keys=64, ctas=3), aligned=True)
            yield replace(of_four(heads, dtype), aligned=True)
            yield replace(best, aligned=True, min_blocks=4)
            for cluster in (2, 4, 8):
                yield replace(best, cluster=cluster)
                yield replace(best, cluster=cluster, dependent=True)
                if cluster > 2:
                    yield replace(deeper, cluster=cluster)


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
