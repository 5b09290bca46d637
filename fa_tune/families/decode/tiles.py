"""Shapes of tiles of the `decode` family: rings of keys that fill a part of shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from fa_tune.core.arch import limits
from fa_tune.core.workload import DType
from fa_tune.families.constraints import smem_does_not_fit
from fa_tune.families.decode.config import MMA_M, Combine, DecodeConfig, KVType

H200 = limits((9, 0))  # no shared memory is larger
# Of K and V in a ring: enough for the bandwidth of an H200, and more gained nothing.
RING_BYTES = 128 << 10
SMALL_RING_BYTES = 64 << 10
MANY_ROWS = 32  # of a tile of which a multiprocessor has several
ROWS = (16, 32, 64)  # of tiles
DOUBLE_ROWS, DOUBLE_KEYS = 128, 64  # of the largest tile
KEYS = 128  # of blocks
PAIRED_KEYS = 64  # of those of a CTA of two for a multiprocessor
SHORT_D_HEAD = 64
# Where those of a key are no more than these a block has twice the keys, if a tile has no more rows
# than these: others have no registers for it.
WIDE_KEYS, WIDE_KEY_BYTES, WIDE_ROWS = 256, 256, 32
WARPS = 8  # of a multiprocessor: more have too few registers
TILE_BYTES = 128 << 10  # that a multiprocessor reads while a CTA begins and ends a tile


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


def of_one(heads: Heads, dtype: DType, rows: int, ring_bytes: int = RING_BYTES) -> DecodeConfig:
    """Tile of one CTA for a multiprocessor."""
    wide = tile_of(heads, dtype, rows, ring_bytes, keys=WIDE_KEYS)
    narrow = wide.key_bytes <= WIDE_KEY_BYTES
    return wide if narrow and rows <= WIDE_ROWS else tile_of(heads, dtype, rows, ring_bytes)


def double_tile(dtype: DType) -> DecodeConfig:
    """The largest tile, whose warps all divide the rows."""
    whole = tile_of(HEADS, dtype, DOUBLE_ROWS, keys=DOUBLE_KEYS)
    return with_end(replace(whole, aligned=True, dependent=True))


def of_two(heads: Heads, dtype: DType, rows: int) -> DecodeConfig:
    """A tile of which a multiprocessor has two CTAs."""
    return _of_ring(deeper_two(heads, dtype, rows), 64 << 10)


def deeper_two(heads: Heads, dtype: DType, rows: int) -> DecodeConfig:
    """That tile with as large a ring as has room."""
    keys = PAIRED_KEYS * (2 if has_short_keys(heads) else 1)
    return tile_of(heads, dtype, rows, 96 << 10, keys=keys, ctas=2)


def has_short_keys(heads: Heads) -> bool:
    """Whether K and V of a key have half as many 16-bit numbers as usual: then the same bytes are
    under way with blocks of twice the keys."""
    return heads.kv_type is KVType.SAME and max(heads.d_head, heads.d_head_v) <= SHORT_D_HEAD


def _of_ring(tile: DecodeConfig, ring_bytes: int) -> DecodeConfig:
    """Tile with no larger a ring, but of two blocks at least; as it is where keys of 16
    rows have few bytes, which takes more of them under way."""
    if tile.B_r == MMA_M and tile.key_bytes <= WIDE_KEY_BYTES:
        return tile
    return replace(tile, stages=min(tile.stages, tile.stages_in(ring_bytes)))


def with_end(tile: DecodeConfig) -> DecodeConfig:
    """With the end that suits its rows."""
    return replace(tile, by_rows=tile.B_r > MMA_M and tile.combine is not Combine.ALL)


def of_three(heads: Heads, dtype: DType) -> DecodeConfig:
    """A tile of 16 rows of which a multiprocessor has three CTAs."""
    return tile_of(heads, dtype, MMA_M, 64 << 10, keys=64, ctas=3)


def of_four(heads: Heads, dtype: DType, rows: int = MMA_M) -> DecodeConfig:
    """A tile of which a multiprocessor has four CTAs."""
    return _of_ring(deeper_four(heads, dtype, rows), 32 << 10)


def deeper_four(heads: Heads, dtype: DType, rows: int = MMA_M) -> DecodeConfig:
    """That tile with as large a ring as has room."""
    return tile_of(heads, dtype, rows, 48 << 10, keys=32, ctas=4)


def of_small_ring(heads: Heads, dtype: DType, ctas: int, rows: int = MMA_M) -> DecodeConfig:
    """A tile of which a multiprocessor has so many CTAs, with as small a ring as there is.  More
    keys under way gain nothing where all CTAs read heads side by side."""
    if ctas == 1:
        tile = tile_of(heads, dtype, rows)
    elif ctas == 3:
        tile = of_three(heads, dtype)
    else:
        tile = (of_two if ctas == 2 else of_four)(heads, dtype, rows)
    return replace(tile, stages=2)


def counting(tile: DecodeConfig) -> DecodeConfig:
    """Tile that counts for keys beside its own, whole blocks."""
    block_bytes = tile.B_c * tile.key_bytes
    return replace(tile, tile_keys=tile.B_c * ceil(TILE_BYTES / tile.ctas_per_sm / block_bytes))
