"""The named sets of the `sm90` family, and what is not worth a place in `tune`.

fast    what was fastest somewhere in measurements on an H200, or close to it
tune    tiles that may win somewhere, with the schedulers, orders and rescale policies that may
prog    the ladder from one serial consumer up, one idea per step
all     all of these, sorted
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Rejected
from fa_tune.core.workload import DType
from fa_tune.families.axes import Axes, expand
from fa_tune.families.sm90 import few_tiles
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config, chosen_as
from fa_tune.families.sm90.defaults import (
    default_config,
    has_small_v,
    kind_of,
    single_loop,
    tiles_of,
)
from fa_tune.families.sm90.names import parse

ALLOWED_KEYS = "fast, tune, all, prog, or one config's short form"
TUNE_DTYPES = (DType.BF16, DType.FP16)
PROGRESSION_DTYPES = (DType.FP16,)

Listed = tuple[tuple[str, str], ...]

PROGRESSION = (
    "sm90(FP16, 128, 64x128): stages_2",
    "sm90(FP16, 128, 128x128): stages_2",
    "sm90(FP16, 128, 128x128): stages_2+pingpong",
    "sm90(FP16, 128, 128x128): stages_2+pingpong+overlap",
    "sm90(FP16, 128, 128x128): stages_2+pingpong+overlap+static",
    "sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+static",
    "sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+static",
    "sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+dynamic",
    "sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap+dynamic"
    "+longest_first",
)


_ORDER = "dynamic+longest_first"
_STALE = f"stale_max+{_ORDER}"
_CROSS = "stages_2+q_stages_2+pingpong+overlap+cross_tile_overlap"
_FREE = "stages_2+q_stages_2+overlap+cross_tile_overlap"
_BEST = f"{_CROSS}+{_STALE}"
_THRESHOLDED = f"{_CROSS}+thresholded_rescale+{_ORDER}"
_ONE_Q = f"stages_2+pingpong+overlap+{_STALE}"
_APART = f"stages_2+pingpong+overlap+cross_tile_overlap+{_STALE}"
_ONE_Q_3 = f"stages_3+pingpong+overlap+{_STALE}"
_ALONE = f"{_FREE}+{_STALE}+min_ctas_per_sm_3"
_ONE_TILE = "stages_2+pingpong+overlap+stale_max+longest_first"
_EARLY = "early_test_wait"
_PAIR = f"{_FREE}+{_STALE}+min_ctas_per_sm_2"
_TURNS = f"{_BEST}+rows_in_turn"
_TURNS_3 = _TURNS.replace("stages_2", "stages_3", 1)
_ADAPTIVE = f"{_BEST}+adaptive_max"
_APART_ADAPTIVE = f"{_APART}+adaptive_max"
_BOTH = f"{_TURNS}+adaptive_max"

# (tile, words) by d_head.
FAST: dict[int, Listed] = {
    64: (
        *(("192x128", words) for words in (_ADAPTIVE, f"{_ADAPTIVE}+{_EARLY}")),
        *(("192x128", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("192x128", words) for words in (_ONE_Q, f"{_ONE_Q_3}+{_EARLY}")),
        *(("192x128", words) for words in (f"{_THRESHOLDED}+{_EARLY}",)),
        # Long sequences with a mask.
        *(("192x128", words) for words in (f"{_ONE_TILE}+{_EARLY}",)),
        # Short sequences: more warps.
        *(("256x64", words) for words in (_ADAPTIVE, _BEST, f"{_BEST}+{_EARLY}")),
        # With a mask as well: fewer rows are fewer keys that nobody sees.
        *(("64x96", words) for words in (_ALONE, f"{_ALONE}+{_EARLY}")),
        *(("64x64", words) for words in (_ALONE,)),
        *(("128x128", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
    ),
    80: (
        *(("128x128", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("192x80", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("64x64", words) for words in (_PAIR, f"{_PAIR}+{_EARLY}")),
        *(("128x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("192x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
    ),
    # 192x96 is 3 % faster, but keeps a word of a thread in local memory.
    96: (
        *(("192x80", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("128x128", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("64x64", words) for words in (_PAIR, f"{_PAIR}+{_EARLY}")),
        *(("128x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("192x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
    ),
    112: (
        *(("192x96", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("128x128", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("64x64", words) for words in (_PAIR, f"{_PAIR}+{_EARLY}")),
        *(("128x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("192x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
    ),
    128: (
        *(("128x128", words) for words in (_BOTH, f"{_BOTH}+{_EARLY}", _TURNS)),
        *(("128x128", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("128x128", words) for words in (f"{_FREE}+{_STALE}", _ONE_Q)),
        *(("192x80", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("64x64", words) for words in (_PAIR, f"{_PAIR}+{_EARLY}")),
        *(("128x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
        *(("192x64", words) for words in (_BEST, f"{_BEST}+{_EARLY}")),
    ),
    192: (
        *(("128x80", words) for words in (_BEST, f"{_BEST}+{_EARLY}", _ONE_Q)),
        *(("128x96", words) for words in (_ONE_Q, f"{_ONE_Q}+{_EARLY}", _ONE_TILE)),
        *(("128x112", words) for words in (_ONE_Q,)),
        *(("128x96", words) for words in (_APART, f"{_APART}+{_EARLY}")),
    ),
    256: (
        *(("128x64", words) for words in (_ONE_Q, f"{_ONE_Q}+{_EARLY}")),
        *(("128x80", words) for words in (_ONE_Q, f"{_ONE_Q}+{_EARLY}")),
        *(("128x80", words) for words in (f"stages_2+pingpong+overlap+{_ORDER}",)),
        *(("128x64", words) for words in (_APART, f"{_APART}+{_EARLY}")),
        *(("128x64", words) for words in (_APART_ADAPTIVE,)),
    ),
}


FAST_192_128: Listed = (
    *(("128x128", words) for words in (_APART, f"{_APART}+{_EARLY}", f"{_APART}+rows_in_turn")),
    # Up to lengths of 2048.
    *(("128x64", words) for words in (_TURNS_3,)),
    *(("128x128", words) for words in (_ONE_Q, f"{_ONE_Q}+{_EARLY}")),
    *(("128x96", words) for words in (_BEST, f"{_BEST}+{_EARLY}", _ONE_Q)),
    *(("192x80", words) for words in (_ONE_Q, f"{_ONE_Q}+{_EARLY}")),
    *(("192x64", words) for words in (_BEST,)),
)


def _listed(d_head: int, d_head_v: int) -> Listed:
    """The fast configs for head dimensions, none where the family has no tiles."""
    if not tiles_of(d_head, d_head_v):
        return ()
    return FAST_192_128 if has_small_v(d_head, d_head_v) else FAST[kind_of(d_head, d_head_v)]


@dataclass(frozen=True)
class TuneRule:
    """One hunch: `rejects(config)` is true for what it leaves out, `reason` says why."""

    name: str
    reason: str
    rejects: Callable[[Sm90Config], bool]


# d_head, B_c, mma_warpgroups, pingpong, rescale
_ROWS_IN_TURN = (128, 128, 2, True, Rescale.STALE_MAX)
_ADAPTIVE_MAX = (
    _ROWS_IN_TURN,
    (64, 128, 3, True, Rescale.STALE_MAX),
    (64, 64, 4, True, Rescale.STALE_MAX),
)


def _tile_and_policy(c: Sm90Config) -> tuple[int, int, int, bool, Rescale]:
    rescale = Rescale.STALE_MAX if c.rescale is Rescale.WATCHED_MAX else c.rescale
    return chosen_as(c.d_head), c.B_c, c.mma_warpgroups, c.pingpong, rescale


TUNE_RULES = (
    TuneRule(
        "third_stage_for_small_blocks",
        "a third stage helped only where 3 warpgroups go through small blocks quickly, or rows of "
        "V are short",
        lambda c: (
            c.stages > 2
            and (
                (c.mma_warpgroups < 3 and not has_small_v(c.d_head, c.d_head_v))
                or c.rescale is Rescale.EACH_BLOCK
            )
        ),
    ),
    TuneRule(
        "overlap_tiles_where_there_is_room",
        "with a second Q buffer, cross_tile_overlap costs nothing more and hides a tile's end",
        lambda c: c.q_stages == 2 and not c.cross_tile_overlap,
    ),
    TuneRule(
        "dynamic_before_static",
        "the static scheduler was slower than the dynamic one at every length",
        lambda c: c.scheduler is Scheduler.STATIC,
    ),
    TuneRule(
        "thresholded_once",
        "thresholded_rescale is for data whose maxima grow: one config of each kind is enough",
        lambda c: c.rescale is Rescale.THRESHOLDED and c.early_test_wait,
    ),
    TuneRule(
        "thresholded_where_issue_is_scarce",
        "one tile per CTA is for long sequences and 2 warpgroups, which thresholded_rescale slows",
        lambda c: c.scheduler is Scheduler.SINGLE and c.rescale is Rescale.THRESHOLDED,
    ),
    TuneRule(
        "single_loop_by_d_head",
        "one loop for all blocks was faster with d_head 64 and 256, and slower with 128 and 192, "
        "and with adaptive_max",
        lambda c: c.single_loop != single_loop(c),
    ),
    TuneRule(
        "rows_in_turn_where_it_won",
        "rows_in_turn was measured, and faster, with d_head 128 and the default's tile in turns, "
        "and where V has at most 128 columns and Q more",
        lambda c: (
            c.rows_in_turn
            and _tile_and_policy(c) != _ROWS_IN_TURN
            and not has_small_v(c.d_head, c.d_head_v)
        ),
    ),
    TuneRule(
        "adaptive_max_where_it_won",
        "adaptive_max was measured, and faster, in turns with 192x128 and 256x64 at d_head 64 and, "
        "with rows_in_turn, the default's tile at 128",
        lambda c: (
            c.adaptive_max
            and (_tile_and_policy(c) not in _ADAPTIVE_MAX or (c.d_head == 128) != c.rows_in_turn)
        ),
    ),
    TuneRule(
        "watched_max_where_it_won",
        "watched_max was measured, and faster where keys are far above all others, in fp16 with "
        "adaptive_max",
        lambda c: (
            c.rescale is Rescale.WATCHED_MAX and not (c.dtype is DType.FP16 and c.adaptive_max)
        ),
    ),
)


def tune_rejection(config: Sm90Config) -> Rejected | None:
    """The rule, an opinion on speed, that keeps a config out of the tune set, or None."""
    for rule in TUNE_RULES:
        if rule.rejects(config):
            return Rejected(rule.name, rule.reason)
    return None


def get_tune_configs(
    dtypes: Sequence[DType] = TUNE_DTYPES, *, d_head: int = 128, d_head_v: int = 0
) -> list[Sm90Config]:
    """The `tune` set; empty for head dimensions that the family has no tiles for."""
    tiles = tiles_of(d_head, d_head_v)
    least_q = 1 if has_small_v(d_head, d_head_v) else 2  # tiles of Q with cross_tile_overlap
    axes: dict[str, Sequence[Any]] = {
        "dtype": dtypes,
        "d_head": (d_head,),
        "mma_warpgroups": sorted({warpgroups for warpgroups, _, _ in tiles}),
        "B_c": sorted({keys for _, keys, _ in tiles}),
        "stages": (2, 3),
        "q_stages": (1, 2),
        "pingpong": (False, True),
        "overlap": (True,),
        "cross_tile_overlap": (False, True),
        "rescale": (Rescale.THRESHOLDED, Rescale.STALE_MAX, Rescale.WATCHED_MAX),
        "scheduler": tuple(Scheduler),
        "order": tuple(Order),
        "min_ctas_per_sm": sorted({ctas for _, _, ctas in tiles}),
        "early_test_wait": (False, True),
        "single_loop": (False, True),
        "d_head_v": (0 if d_head_v == d_head else d_head_v,),
        "rows_in_turn": (False, True),
        "adaptive_max": (False, True),
    }
    # Tile by tile: of all combinations of its numbers hardly any is one.
    found = [
        c
        for warpgroups, keys, ctas in tiles
        for c in expand(Sm90Config, {**axes, **_of_tile(warpgroups, keys, ctas)})
        if not (c.cross_tile_overlap and (c.q_stages < least_q or not c.persistent))
        and not (c.q_stages == 2 and not c.persistent)
        and tune_rejection(c) is None
    ]
    return sorted(found, key=lambda c: [axes[n].index(getattr(c, n)) for n in axes])


def _of_tile(warpgroups: int, keys: int, ctas: int) -> Axes:
    return {
        "mma_warpgroups": (warpgroups,),
        "B_c": (keys,),
        "pingpong": (warpgroups > 1,),
        "min_ctas_per_sm": (ctas,),
    }


def get_progression_configs(
    dtypes: Sequence[DType] = PROGRESSION_DTYPES, *, d_head: int = 128, d_head_v: int = 0
) -> list[Sm90Config]:
    """The ladder, step by step; empty above d_head 128, where its tiles do not fit."""
    if d_head not in (64, 128) or d_head_v not in (0, d_head):
        return []
    return [
        replace(parse(rung), dtype=dtype, d_head=d_head)
        for dtype, rung in itertools.product(dtypes, PROGRESSION)
    ]


def get_fast_configs(
    dtypes: Sequence[DType] = TUNE_DTYPES, *, d_head: int = 128, d_head_v: int = 0
) -> list[Sm90Config]:
    """The `fast` set; empty for head dimensions that the family has no tiles for."""
    listed = _listed(d_head, d_head_v)
    written = (
        parse(f"sm90({dtype.name}, {d_head}, {tile}): {words}")
        for dtype, (tile, words) in itertools.product(dtypes, listed)
    )
    given = [replace(c, d_head_v=d_head_v) for c in written]
    found = [replace(c, single_loop=single_loop(c)) for c in given]
    if found and d_head_v in (0, d_head):
        usual = (default_config(d_head, dtype, d_head_v=d_head_v) for dtype in dtypes)
        found += itertools.chain.from_iterable(map(few_tiles.candidates, usual))
    return found


def get_configs(
    key: str, *, dtypes: Sequence[DType] | None = None, d_head: int = 128, d_head_v: int = 0
) -> list[Sm90Config]:
    """The set that `key` names; raises InvalidConfig, listing what is allowed."""
    heads = {"d_head": d_head, "d_head_v": d_head_v}
    if key == "fast":
        return get_fast_configs(dtypes or TUNE_DTYPES, **heads)
    if key == "tune":
        return get_tune_configs(dtypes or TUNE_DTYPES, **heads)
    if key == "prog":
        return get_progression_configs(dtypes or PROGRESSION_DTYPES, **heads)
    if key == "all":
        tune = get_tune_configs(dtypes or TUNE_DTYPES, **heads)
        fast = get_fast_configs(dtypes or TUNE_DTYPES, **heads)
        ladder = get_progression_configs(dtypes or PROGRESSION_DTYPES, **heads)
        return sorted({*fast, *tune, *ladder})
    raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {ALLOWED_KEYS}")
