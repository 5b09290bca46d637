"""The named sets of the `decode` family.

tune    tiles that fill a multiprocessor's shared memory with keys under way, in every way to share
        and to combine
fast    those that were fastest somewhere in measurements on an H200, or close to it
all     both, sorted
e4m3    as fast, for K and V in e4m3
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.families.decode import clusters
from fa_tune.families.decode.config import MMA_M, MOST_BLOCKS, Combine, DecodeConfig, KVType
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.decode.tiles import (
    H200,
    HEADS,
    MANY_ROWS,
    ROWS,
    WIDE_ROWS,
    Heads,
    counting,
    deeper_four,
    deeper_two,
    double_tile,
    of_four,
    of_one,
    of_small_ring,
    of_three,
    of_two,
    tile_of,
    with_end,
)
from fa_tune.families.plan import TileOrder

ALLOWED_KEYS = "fast, tune, all, e4m3, or one config's short form"
TUNE_DTYPES = (DType.BF16, DType.FP16)


def _fast(heads: Heads, dtype: DType) -> Iterator[DecodeConfig]:
    for rows in ROWS:
        best, deeper = (tile_of(heads, dtype, rows, kib << 10) for kib in (128, 192))
        wide = of_one(heads, dtype, rows)
        for tile in _of_shares(heads, dtype, rows, (best, deeper, wide)):
            yield with_end(tile)
            if not tile.has_whole_lines and not tile.order:
                yield replace(with_end(tile), sectors=True)
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
        yield from of_whole_tiles(heads, dtype, rows)
    if rows > MMA_M:
        yield replace(two, aligned=True, dependent=True, tile_keys=4 * two.B_c)
    if rows == MMA_M:
        yield replace(two, stages=2, aligned=True, dependent=True, tile_keys=two.B_c)
        yield replace(of_three(heads, dtype), aligned=True, min_blocks=MOST_BLOCKS)


def _of_half_keys(tile: DecodeConfig) -> DecodeConfig:
    """Tile of the same ring with blocks of half the keys."""
    return replace(tile, B_c=tile.B_c // 2, n_warps=tile.n_warps // 2, stages=2 * tile.stages)


def of_whole_tiles(heads: Heads, dtype: DType, rows: int = MMA_M) -> Iterator[DecodeConfig]:
    """Configs whose CTAs have whole tiles."""
    for ctas in (1, 2, 3, 4) if rows == MMA_M else (1, 2, 4):
        tile = of_small_ring(heads, dtype, ctas, rows)
        yield replace(tile, order=TileOrder.WHOLE_ROUNDS)
        yield replace(tile, order=TileOrder.CTA_PER_TILE)
        yield replace(tile, order=TileOrder.CTA_PER_TILE, dependent=True)


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
