"""Defaults of the `sm90` family: its tiles, and what is fastest for sizes, windows and types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import ceil

from fa_tune import operations
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config, chosen_as
from fa_tune.families.sm90.constraints import holds_d_head, holds_d_v

Tiles = tuple[tuple[int, int, int], ...]

# (consumer warpgroups, B_c, CTAs per multiprocessor) by d_head, the default's first.  Others have
# those of the next larger one.
TILES: dict[int, Tiles] = {
    64: ((3, 128, 1), (3, 96, 1), (2, 128, 1), (4, 64, 1), (1, 96, 3), (1, 64, 3)),
    80: ((3, 80, 1), (2, 128, 1), (3, 112, 1), (3, 96, 1)),
    96: ((3, 80, 1), (2, 128, 1), (3, 96, 1), (2, 144, 1)),
    112: ((3, 96, 1), (2, 128, 1), (2, 144, 1)),
    128: ((2, 128, 1), (2, 144, 1), (2, 112, 1), (3, 80, 1), (3, 64, 1)),
    192: ((2, 80, 1), (2, 96, 1), (2, 112, 1)),
    256: ((2, 64, 1), (2, 80, 1)),
}


# With V of at most 128 columns where Q and K have more, up to 192.  128x112 was behind on an H200
# at every length.
TILES_192_128: Tiles = ((2, 128, 1), (2, 64, 1), (2, 96, 1), (3, 80, 1), (3, 64, 1))

# With these heads a causal mask's blocks go through the loop of the others: a quarter less code,
# 1 % faster, and 2 % slower with other heads or with adaptive_max (docs/kernel-sm90.md).
SINGLE_LOOP_HEADS = (64, 256)

# Queries of heads that share no K and V.  `decode` has tiles of 32 rows for them, and is slower
# than this family from so many keys on, by the largest d_head, up to as many as were measured
# (benchmarks/few_rows_h200.tsv).
UNSHARED_ROWS = range(17, 33)
UNSHARED_KEYS = {64: range(1, 1601), 96: range(96, 1601), 128: range(32, 1601)}


def has_small_v(d_head: int, d_head_v: int) -> bool:
    """Whether V has at most 128 columns where Q and K have more, up to 192."""
    return (d_head_v or d_head) <= 128 < d_head <= 192


def kind_of(d_head: int, d_head_v: int) -> int:
    """The head dimension whose tiles heads have that the family holds.  V of another one than Q and
    K: that of the larger, which fits as well."""
    return min(d for d in TILES if d >= max(d_head, d_head_v or d_head))


def tiles_of(d_head: int, d_head_v: int) -> Tiles:
    """The tiles for head dimensions, the default's first; none where the family has no kernels."""
    if not holds_d_head(d_head) or not holds_d_v(d_head_v or d_head):
        return ()
    return TILES_192_128 if has_small_v(d_head, d_head_v) else TILES[kind_of(d_head, d_head_v)]


def single_loop(config: Sm90Config) -> bool:
    """Whether a config has it, as is usual for such a config."""
    c = config
    equal = c.d_head_v in (0, c.d_head)
    stale = c.rescale is Rescale.STALE_MAX and not c.adaptive_max
    return equal and chosen_as(c.d_head) in SINGLE_LOOP_HEADS and stale


def default_config(d_head: int, dtype: DType, *, d_head_v: int = 0) -> Sm90Config:
    """What was fastest or near it on an H200 at every length, with a mask and without.  For
    head dimensions that have no tiles, a config that the constraints refuse."""
    warpgroups, keys, _ = (tiles_of(d_head, d_head_v) or ((2, 64, 1),))[0]
    small_v = has_small_v(d_head, d_head_v)
    roomy = max(d_head, d_head_v) <= 192 and not small_v
    alike, kind = d_head_v in (0, d_head), chosen_as(d_head)
    config = Sm90Config(
        dtype,
        d_head,
        warpgroups,
        keys,
        stages=2,
        q_stages=2 if roomy else 1,
        pingpong=True,
        overlap=True,
        cross_tile_overlap=roomy or small_v,
        rescale=Rescale.STALE_MAX,
        scheduler=Scheduler.DYNAMIC,
        order=Order.LONGEST_FIRST,
        early_test_wait=not small_v and (not alike or kind not in (64, 128, 192)),
        d_head_v=d_head_v,
        rows_in_turn=alike and d_head == 128,
        adaptive_max=alike and kind in (64, 128),
    )
    return replace(config, single_loop=single_loop(config))


# Other tiles than the usual one, by d_head: consumer warpgroups, B_c, CTAs on a multiprocessor, and
# how many times as long a row and a key of them take.
SMALL_TILE = (1, 64, 3)  # fewer keys that no query sees; CTAs take turns
SHORT_TILE, NARROW_TILE = (1, 64, 2), (2, 64, 1)  # above d_head 64, where few queries are
FEW_QUERIES = 128  # for them
UNEVEN = 40  # and 56: rows of no whole sectors of 32 bytes, which take long to load: larger tiles
OTHER_TILES = {
    UNEVEN: {(4, 64, 1): 1.06, (2, 128, 1): 1.3, SMALL_TILE: 2.0},
    64: {(4, 64, 1): 1.06, SMALL_TILE: 1.25},
    72: {(2, 128, 1): 1.19, SHORT_TILE: 1.9, NARROW_TILE: 1.33},
    80: {(2, 128, 1): 1.11, SHORT_TILE: 1.55, NARROW_TILE: 1.31},
    88: {(2, 128, 1): 1.25, SHORT_TILE: 2.3, NARROW_TILE: 1.37},
    96: {(2, 128, 1): 1.16, SHORT_TILE: 1.5, NARROW_TILE: 1.34},
    104: {(2, 128, 1): 1.25, SHORT_TILE: 2.1, NARROW_TILE: 1.33},
    112: {(2, 128, 1): 1.09, SHORT_TILE: 1.5, NARROW_TILE: 1.28},
    120: {(3, 80, 1): 0.92, SHORT_TILE: 1.4, NARROW_TILE: 1.13},
    128: {(3, 80, 1): 1.04, SHORT_TILE: 1.4, NARROW_TILE: 1.13},
    192: {(1, 64, 1): 1.4, (2, 64, 1): 1.03},
    256: {(1, 64, 1): 1.28},
}
CAUSAL_TIMES = 1.25  # what a mask adds to the cost of one warpgroup of wider heads: half blocks
# Keys of one block or two, above d_head 64 and without a mask: tiles of more rows, of which there
# are two for each multiprocessor and more (benchmarks/few_keys_h200.txt).
FEW_KEYS_TILE = (3, 64, 1)
FEW_KEYS = (range(1, 65), range(81, 129))
MULTIPROCESSORS = 132  # of the boards that the defaults were measured on
LEAST_WATCHED = 1024  # keys, with a causal mask
NARROW = 1024  # keys of a window, up to which the small tile was measured


def default_for(workload: Workload) -> Sm90Config:
    """`default_config`, or what is faster for such sizes, windows and types of elements."""
    w = workload
    if w.packed and (w.total_q, w.total_kv) == (w.batch * w.seq_len_q, w.batch * w.seq_len_kv):
        # No sequence is shorter than the longest.
        w = w.dense(w.batch, w.seq_len_q, w.seq_len_kv)
    usual = default_config(w.d_head, w.dtype, d_head_v=w.d_head_v)
    if w.d_head_v or w.cached:
        return usual
    if w.d_head <= 64 and _sees_few_keys(w) and not w.packed:
        return _with_tile(usual, w, SMALL_TILE)
    if not w.is_plain:
        return usual
    if w.d_head == 256:
        apart = replace(usual, cross_tile_overlap=True, early_test_wait=False, adaptive_max=True)
        return _by_tiles(replace(apart, single_loop=single_loop(apart)), w)
    if _has_few_keys(usual, w):
        return _with_tile(usual, w, FEW_KEYS_TILE)
    return _watched(_by_tiles(usual, w), w)


def outrun_decode(workload: Workload, multiprocessors: int) -> bool:
    """Whether the default is faster than that of the `decode` family: where no heads share K and V,
    and tiles are not too few."""
    w = workload
    if w.windowed or w.kv_e4m3 or w.cached or w.d_head_v or w.heads != w.kv_heads:
        return False
    keys = next((keys for d, keys in UNSHARED_KEYS.items() if w.d_head <= d), range(0))
    enough = 4 * w.batch * w.heads >= 3 * multiprocessors
    return enough and w.seq_len_q in UNSHARED_ROWS and w.seq_len_kv in keys


def _watched(config: Sm90Config, w: Workload) -> Sm90Config:
    """With watched_max, without which cuDNN is faster where keys are far above the others; it costs
    other inputs at most 2.2 %, with a causal mask and d_head 64.  bf16 has room for such keys."""
    if w.dtype is not DType.FP16 or w.windowed or not config.adaptive_max:
        return config
    if w.causal and w.seq_len_kv < LEAST_WATCHED:
        return config
    return replace(config, rescale=Rescale.WATCHED_MAX)


def _sees_few_keys(w: Workload) -> bool:
    """Whether a window bounds both sides, at most NARROW keys in all, with no other change of
    scores, whose registers the small tile may lack."""
    changed = w.softcap is not None or w.alibi or w.score_hook is not None
    right = 0 if w.causal else w.window_right
    if w.window_left is None or right is None or changed:
        return False
    return w.window_left + 1 + right <= NARROW


def _has_few_keys(usual: Sm90Config, w: Workload) -> bool:
    tiles = w.batch * w.heads * ceil(w.seq_len_q / 128)
    few = any(w.seq_len_kv in keys for keys in FEW_KEYS) and tiles >= 2 * MULTIPROCESSORS
    return few and 64 < usual.d_head <= 128 and not (w.causal or w.packed)


def _by_tiles(usual: Sm90Config, w: Workload) -> Sm90Config:
    """With the tile that takes least time by the rows and keys that it visits."""
    others = (_with_tile(usual, w, tile) for tile in _other_tiles(usual))
    fitting = (c for c in others if suits(c, w))
    return min((usual, *fitting), key=lambda config: taken(config, w))


def _other_tiles(config: Sm90Config) -> Mapping[tuple[int, int, int], float]:
    """Tiles besides the usual one of a config's head dimension, and their costs."""
    uneven = config.d_head < 64 and config.d_head % 16 != 0
    kind = UNEVEN if uneven else chosen_as(config.padded_d_v)
    return OTHER_TILES.get(config.d_head, OTHER_TILES.get(kind, {}))


def taken(config: Sm90Config, w: Workload) -> float:
    """Rows times keys that the busiest multiprocessor visits, by what they cost in that tile."""
    tile = config.mma_warpgroups, config.B_c, config.min_ctas_per_sm
    masked = w.causal and config.mma_warpgroups == 1 and config.d_head > 128
    cost = _other_tiles(config).get(tile, 1.0) * (CAUSAL_TIMES if masked else 1.0)
    return cost * _visited(config, w)


def suits(config: Sm90Config, workload: Workload) -> bool:
    """Whether there are so few queries or keys, if the tile is one for few; of a packed batch, by
    the average length, that is seen elsewhere."""
    tile = config.mma_warpgroups, config.B_c, config.min_ctas_per_sm
    if not 64 < config.d_head <= 128:
        return True
    if tile == FEW_KEYS_TILE:
        return any(workload.seq_len_kv in keys for keys in FEW_KEYS)
    small = tile in (SHORT_TILE, NARROW_TILE)
    return workload.seq_len_q <= FEW_QUERIES or workload.packed or not small


def _with_tile(usual: Sm90Config, w: Workload, tile: tuple[int, int, int]) -> Sm90Config:
    """First maxima that look at other rows stay with four warpgroups alone, and not in fp16 with a
    mask, where they cost peaked inputs more than they give others."""
    warpgroups, keys, ctas = tile
    config = replace(
        usual,
        mma_warpgroups=warpgroups,
        B_c=keys,
        min_ctas_per_sm=ctas,
        pingpong=warpgroups > 1,
        rows_in_turn=False,
        adaptive_max=warpgroups == 4 and not (w.causal and w.dtype is DType.FP16),
    )
    return replace(config, single_loop=single_loop(config))


def _visited(config: Sm90Config, w: Workload) -> float:
    """Rows times keys of the tiles that the busiest multiprocessor does: its share of all, the
    longest first, if they differ.  Of a packed batch the host knows lengths in all alone: the last
    tile of a sequence is half full on average (benchmarks/packed_tiles_h200.txt)."""
    if w.packed:
        rows = max(config.B_r, w.total_q / w.batch + config.B_r / 2)
        keys = max(config.B_c, w.total_kv / w.batch + config.B_c / 2)
        longest = ceil(w.seq_len_kv / config.B_c) * config.B_c * config.B_r
        return max(w.batch * w.heads * rows * keys / MULTIPROCESSORS, longest)
    tiles = w.batch * w.heads * ceil(w.seq_len_q / config.B_r)
    blocks = ceil(w.seq_len_kv / config.B_c)
    if not w.causal:
        return ceil(tiles / MULTIPROCESSORS) * blocks * config.B_r * config.B_c
    visited = w.batch * w.heads * operations.get(w.op).visited_tiles(w, config.B_r, config.B_c)
    return max(visited / MULTIPROCESSORS, blocks) * config.B_r * config.B_c
