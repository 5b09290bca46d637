"""The named sets of the `sm90` family, its defaults, and what is not worth a place in `tune`.

fast    what was fastest somewhere in measurements on an H200, or close to it
tune    tiles that may win somewhere, with the schedulers, orders and rescale policies that may
prog    the ladder from one serial consumer up, one idea per rung
all     all of these, sorted
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import DType, Rejected
from fa_tune.families.axes import Axes, expand
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90.names import parse

ALLOWED_KEYS = "fast, tune, all, prog, or one config's short form"
TUNE_DTYPES = (DType.BF16, DType.FP16)
PROGRESSION_DTYPES = (DType.FP16,)

# (consumers, B_c, CTAs per multiprocessor) by d_head, the default's first.
TILES: dict[int, tuple[tuple[int, int, int], ...]] = {
    64: ((3, 128, 1), (3, 96, 1), (2, 128, 1), (4, 64, 1), (1, 96, 3), (1, 64, 3)),
    128: ((2, 128, 1), (2, 144, 1), (2, 112, 1), (3, 80, 1), (3, 64, 1)),
    192: ((2, 96, 1), (2, 112, 1), (2, 80, 1)),
    256: ((2, 64, 1), (2, 80, 1)),
}

PROGRESSION = (
    "sm90(FP16, 128, 64x128, 1): stages_2",
    "sm90(FP16, 128, 128x128, 2): stages_2",
    "sm90(FP16, 128, 128x128, 2): stages_2+pingpong",
    "sm90(FP16, 128, 128x128, 2): stages_2+pingpong+overlap+pin",
    "sm90(FP16, 128, 128x128, 2): stages_2+pingpong+overlap",
    "sm90(FP16, 128, 128x128, 2): stages_2+pingpong+overlap+static",
    "sm90(FP16, 128, 128x128, 2): stages_2+q_stages_2+pingpong+overlap+static",
    "sm90(FP16, 128, 128x128, 2): stages_2+q_stages_2+pingpong+overlap+carry+static",
    "sm90(FP16, 128, 128x128, 2): stages_2+q_stages_2+pingpong+overlap+carry+dynamic",
    "sm90(FP16, 128, 128x128, 2): stages_2+q_stages_2+pingpong+overlap+carry+dynamic+longest_first",
)


_ORDER = "dynamic+longest_first"
_TRUST = f"trusting_rescale+{_ORDER}"
_CARRY = "stages_2+q_stages_2+pingpong+overlap+carry"
_FREE = "stages_2+q_stages_2+overlap+carry"
_BEST = f"{_CARRY}+{_TRUST}"
_LAZY = f"{_CARRY}+lazy_rescale+{_ORDER}"
_Q_REGISTERS = f"stages_2+q_stages_2+pingpong+overlap+q_registers+carry+{_TRUST}"
_ONE_Q = f"stages_2+pingpong+overlap+{_TRUST}"
_ONE_Q_3 = f"stages_3+pingpong+overlap+{_TRUST}"
_ALONE = f"{_FREE}+{_TRUST}+ctas_3"
_ONE_TILE = "stages_2+pingpong+overlap+trusting_rescale+longest_first"

# (tile and consumers, words) by d_head.
FAST: dict[int, tuple[tuple[str, str], ...]] = {
    64: (
        *(("192x128, 3", words) for words in (_BEST, f"{_BEST}+early_look")),
        *(("192x128, 3", words) for words in (_ONE_Q, f"{_ONE_Q_3}+early_look")),
        *(("192x128, 3", words) for words in (f"{_LAZY}+early_look",)),
        *(("192x96, 3", words) for words in (f"{_Q_REGISTERS}+early_look",)),
        # Short sequences: more warps.
        *(("256x64, 4", words) for words in (_BEST, f"{_BEST}+early_look")),
        # With a mask as well: fewer rows are fewer keys that nobody sees.
        *(("64x96, 1", words) for words in (_ALONE, f"{_ALONE}+early_look")),
        *(("64x64, 1", words) for words in (_ALONE,)),
        *(("128x128, 2", words) for words in (_BEST, f"{_BEST}+early_look")),
    ),
    128: (
        *(("128x128, 2", words) for words in (_BEST, f"{_BEST}+early_look")),
        *(("128x128, 2", words) for words in (f"{_FREE}+{_TRUST}", _ONE_Q)),
        *(("128x128, 2", words) for words in (f"{_CARRY}+{_ORDER}+stagger",)),
        *(("192x80, 3", words) for words in (_BEST, f"{_BEST}+early_look")),
        *(("192x80, 3", words) for words in (f"{_LAZY}+early_look+stagger",)),
    ),
    192: (
        *(("128x96, 2", words) for words in (_ONE_Q, f"{_ONE_Q}+early_look", _ONE_TILE)),
        *(("128x112, 2", words) for words in (_ONE_Q,)),
        *(("128x80, 2", words) for words in (_ONE_Q,)),
    ),
    256: (
        *(("128x64, 2", words) for words in (_ONE_Q, f"{_ONE_Q}+early_look")),
        *(("128x80, 2", words) for words in (_ONE_Q, f"{_ONE_Q}+early_look")),
        *(("128x80, 2", words) for words in (f"stages_2+pingpong+overlap+{_ORDER}",)),
    ),
}


def default_config(d_head: int, dtype: DType) -> Sm90Config:
    """What was fastest or near it on an H200 at every length, with a mask and without.  For a
    d_head that has no tiles here, a config that the constraints refuse."""
    consumers, keys, _ = TILES.get(d_head, ((2, 64, 1),))[0]
    roomy = d_head <= 128
    return Sm90Config(
        dtype,
        d_head,
        64 * consumers,
        keys,
        consumers,
        2,
        q_stages=2 if roomy else 1,
        pingpong=True,
        overlap=True,
        pin=False,
        q_registers=False,
        carry=roomy,
        rescale=Rescale.TRUST,
        scheduler=Scheduler.DYNAMIC,
        order=Order.LONGEST_FIRST,
        early_look=d_head == 64,
    )


@dataclass(frozen=True)
class TuneRule:
    """One hunch: `rejects(config)` is true for what it leaves out, `reason` says why."""

    name: str
    reason: str
    rejects: Callable[[Sm90Config], bool]


TUNE_RULES = (
    TuneRule(
        "third_stage_for_small_blocks",
        "a third stage helped only where 3 consumers go through small blocks quickly",
        lambda c: c.stages > 2 and (c.consumers < 3 or c.rescale is Rescale.EACH_BLOCK),
    ),
    TuneRule(
        "carry_where_there_is_room",
        "with a second Q buffer, carry costs nothing more and hides the end of a tile",
        lambda c: c.q_stages == 2 and not c.carry,
    ),
    TuneRule(
        "dynamic_before_static",
        "the static scheduler was slower than the dynamic one at every length",
        lambda c: c.scheduler is Scheduler.STATIC and c.order is not Order.PAIRED,
    ),
    TuneRule(
        "pairs_want_carry",
        "pairs of tiles pay where a CTA goes from one to the next without a gap",
        lambda c: c.order is Order.PAIRED and not c.carry,
    ),
    TuneRule(
        "soon_or_not",
        "early_look and stagger shorten the same way through a block, and were tried together",
        lambda c: c.rescale is not Rescale.TRUST and c.early_look is not c.stagger,
    ),
    TuneRule(
        "trust_leaves_no_maxima",
        "stagger is about maxima, of which trusting_rescale leaves those of a tile's first blocks",
        lambda c: c.rescale is Rescale.TRUST and c.stagger,
    ),
    TuneRule(
        "lazy_where_issue_is_scarce",
        "a single tile per CTA is for long sequences and 2 consumers, which lazy_rescale slows",
        lambda c: c.scheduler is Scheduler.SINGLE and c.rescale is Rescale.LAZY,
    ),
)


def tune_rejection(config: Sm90Config) -> Rejected | None:
    """The rule, an opinion on speed, that keeps a config out of the tune set, or None."""
    for rule in TUNE_RULES:
        if rule.rejects(config):
            return Rejected(rule.name, rule.reason)
    return None


def get_tune_configs(
    dtypes: Sequence[DType] = TUNE_DTYPES, *, d_head: int = 128
) -> list[Sm90Config]:
    """The `tune` set; empty for a d_head that the family has no tiles for."""
    if d_head not in TILES:
        return []
    tiles = TILES[d_head]
    axes: dict[str, Sequence[Any]] = {
        "dtype": dtypes,
        "d_head": (d_head,),
        "B_r": sorted({64 * consumers for consumers, _, _ in tiles}),
        "B_c": sorted({keys for _, keys, _ in tiles}),
        "consumers": sorted({consumers for consumers, _, _ in tiles}),
        "stages": (2, 3),
        "q_stages": (1, 2),
        "pingpong": (False, True),
        "overlap": (True,),
        "pin": (False,),
        "q_registers": (False,),
        "carry": (False, True),
        "rescale": (Rescale.LAZY, Rescale.TRUST),
        "scheduler": tuple(Scheduler),
        "order": tuple(Order),
        "v_stages": (0,),
        "m_tiles": (1,),
        "cluster": (1,),
        "ctas": sorted({ctas for _, _, ctas in tiles}),
        "split_diagonal": (False,),
        "early_look": (False, True),
        "stagger": (False, True),
    }
    # Tile by tile: of all combinations of its numbers hardly any is one.
    found = [
        c
        for consumers, keys, ctas in tiles
        for c in expand(Sm90Config, {**axes, **_of_tile(consumers, keys, ctas)})
        if not (c.carry and (c.q_stages == 1 or not c.persistent))
        and not (c.q_stages == 2 and not c.persistent)
        and (c.order is not Order.PAIRED or c.scheduler is Scheduler.STATIC)
        and tune_rejection(c) is None
    ]
    return sorted(found, key=lambda c: [axes[n].index(getattr(c, n)) for n in axes])


def _of_tile(consumers: int, keys: int, ctas: int) -> Axes:
    return {
        "B_r": (64 * consumers,),
        "B_c": (keys,),
        "consumers": (consumers,),
        "pingpong": (consumers > 1,),
        "ctas": (ctas,),
    }


def get_progression_configs(
    dtypes: Sequence[DType] = PROGRESSION_DTYPES, *, d_head: int = 128
) -> list[Sm90Config]:
    """The ladder, rung by rung; empty above d_head 128, where its tiles do not fit."""
    if d_head not in (64, 128):
        return []
    return [
        replace(parse(rung), dtype=dtype, d_head=d_head)
        for dtype, rung in itertools.product(dtypes, PROGRESSION)
    ]


def get_fast_configs(
    dtypes: Sequence[DType] = TUNE_DTYPES, *, d_head: int = 128
) -> list[Sm90Config]:
    """The `fast` set; empty for a d_head that the family has no tiles for."""
    return [
        parse(f"sm90({dtype.name}, {d_head}, {tile}): {words}")
        for dtype, (tile, words) in itertools.product(dtypes, FAST.get(d_head, ()))
    ]


def get_configs(
    key: str, *, dtypes: Sequence[DType] | None = None, d_head: int = 128
) -> list[Sm90Config]:
    """The set that `key` names; raises InvalidConfig, listing what is allowed."""
    if key == "fast":
        return get_fast_configs(dtypes or TUNE_DTYPES, d_head=d_head)
    if key == "tune":
        return get_tune_configs(dtypes or TUNE_DTYPES, d_head=d_head)
    if key == "prog":
        return get_progression_configs(dtypes or PROGRESSION_DTYPES, d_head=d_head)
    if key == "all":
        tune = get_tune_configs(dtypes or TUNE_DTYPES, d_head=d_head)
        fast = get_fast_configs(dtypes or TUNE_DTYPES, d_head=d_head)
        ladder = get_progression_configs(dtypes or PROGRESSION_DTYPES, d_head=d_head)
        return sorted({*fast, *tune, *ladder})
    raise InvalidConfig(f"unknown kernel set {key!r}; allowed: {ALLOWED_KEYS}")
