"""Which configs of the `sm90` family can run: the rules, and what is counted against a device.

kernels/sm90/fwd/constraints.cuh asserts the rules with the same sentences.
"""

from __future__ import annotations

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.families.constraints import Rule, broken_rule, not_exactly, smem_does_not_fit
from fa_tune.families.sm90.config import (
    ENTRY_OVERHEAD,
    MAX_SPLITS,
    MMA_K,
    REGISTER_BUDGET,
    Rescale,
    Sm90Config,
)

COPIED = 8  # elements of 16 bytes, which rows are multiples of


def holds_d_head(d_head: int) -> bool:
    """Whether there are kernels for it."""
    return 32 <= d_head <= 256 and d_head % COPIED == 0


def holds_d_v(d_v: int) -> bool:
    """Whether there are kernels for values and outputs of it."""
    return 16 <= d_v <= 256 and d_v % COPIED == 0


def _rows_have_room(c: Sm90Config) -> bool:
    """Whether exponentials come before the wait for the last product, as softmax.cuh has it."""
    alone = c.mma_warpgroups == 2 and c.min_ctas_per_sm == 1
    registers = 2 * c.padded_d_v + 3 * c.B_c <= 704
    in_place = c.rescale >= Rescale.STALE_MAX and c.overlap
    return in_place and alone and c.B_c >= 64 and c.padded_d_v <= 128 and registers


def _max_may_be_first(c: Sm90Config) -> bool:
    """Whether maxima may come before exponentials, as softmax.cuh has it."""
    registers = 2 * c.padded_d_v + 3 * c.B_c <= 704
    stale = c.rescale in (Rescale.STALE_MAX, Rescale.WATCHED_MAX)
    return stale and c.mma_warpgroups > 1 and registers


CONSTRAINTS: tuple[Rule[Sm90Config], ...] = (
    (
        "d_head_fits_a_wgmma",
        "d_head must be a multiple of 8 between 32 and 256",
        lambda c: holds_d_head(c.d_head),
    ),
    (
        "d_head_v_fits_a_wgmma",
        "d_head_v must be 0, as d_head, or a multiple of 8 between 16 and 256",
        lambda c: holds_d_v(c.d_v),
    ),
    (
        "mma_warpgroups_fit_a_cta",
        "mma_warpgroups must be between 1 and 4, beside the warpgroup that loads",
        lambda c: 1 <= c.mma_warpgroups <= 4,
    ),
    (
        "kv_block_fits_a_wgmma",
        "B_c must be a multiple of 16 between 16 and 256, columns of one wgmma and its k-steps",
        lambda c: 16 <= c.B_c <= 256 and c.B_c % MMA_K == 0,
    ),
    (
        "stages_in_reach",
        "stages must be between 1 and 8",
        lambda c: 1 <= c.stages <= 8,
    ),
    (
        "q_stages_in_reach",
        "q_stages must be 1 or 2: a CTA works on one tile and may have the next one loaded",
        lambda c: c.q_stages in (1, 2),
    ),
    (
        "pingpong_needs_two",
        "pingpong needs at least 2 mma_warpgroups to take turns",
        lambda c: c.mma_warpgroups > 1 or not c.pingpong,
    ),
    (
        "cross_tile_overlap_has_a_next_tile",
        "cross_tile_overlap needs overlap and a scheduler that gives a CTA several tiles",
        lambda c: not c.cross_tile_overlap or (c.overlap and c.persistent),
    ),
    (
        "second_q_has_a_use",
        "q_stages 2 needs a scheduler that gives a CTA several tiles",
        lambda c: c.q_stages == 1 or c.persistent,
    ),
    (
        "ctas_have_registers",
        "min_ctas_per_sm must be 1; or up to 4 with 1 mma_warpgroup, or 2 with 2: more leave too "
        "few registers",
        lambda c: (c.mma_warpgroups, c.min_ctas_per_sm) in REGISTER_BUDGET,
    ),
    (
        "single_loop_has_stale_max",
        "single_loop needs stale_max, exact_max or watched_max: without them blocks with a mask "
        "have a step of their own",
        lambda c: not c.single_loop or c.rescale >= Rescale.STALE_MAX,
    ),
    (
        "rows_in_turn_have_room",
        "rows_in_turn needs stale_max, exact_max or watched_max, overlap, 2 mma_warpgroups, "
        "min_ctas_per_sm 1, B_c of at least 64, d_head_v of at most 128 and 2 d_head_v + 3 B_c of "
        "at most 704",
        lambda c: not c.rows_in_turn or _rows_have_room(c),
    ),
    (
        "adaptive_max_may_be_first",
        "adaptive_max needs stale_max or watched_max, at least 2 mma_warpgroups and 2 d_head_v + "
        "3 B_c of at most 704, as maxima that come first do",
        lambda c: not c.adaptive_max or _max_may_be_first(c),
    ),
    (
        "watched_max_has_a_next_tile",
        "watched_max needs a scheduler that gives a CTA several tiles",
        lambda c: c.rescale is not Rescale.WATCHED_MAX or c.persistent,
    ),
    (
        "splits_in_range",
        "splits must be between 1 and 8, CTAs of a cluster",
        lambda c: 1 <= c.splits <= MAX_SPLITS,
    ),
    (
        "splits_have_one_tile",
        "splits are of one tile: no scheduler that gives a CTA several",
        lambda c: c.splits == 1 or not c.persistent,
    ),
    (
        "splits_have_room",
        "splits need room for fp32 O of a tile where K and V are: more stages or B_c",
        lambda c: c.splits == 1 or c.part_bytes <= c.ring_bytes,
    ),
)


def constraints(config: Sm90Config, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    return (
        not_exactly(limits, (9, 0))
        or broken_rule(config, CONSTRAINTS)
        or _registers_do_not_fit(config)
        or smem_does_not_fit(
            config.smem_bytes, limits, config.min_ctas_per_sm, knob="min_ctas_per_sm"
        )
    )


def _registers_do_not_fit(config: Sm90Config) -> Rejected | None:
    budget = config.register_budget
    if config.operand_registers > budget:
        return Rejected(
            "registers_fit",
            f"O, S and P take {config.operand_registers} registers of a thread; with "
            f"{config.mma_warpgroups * config.min_ctas_per_sm} mma_warpgroups on a multiprocessor "
            f"there are {budget} for them",
        )
    accumulators = max(config.padded_d_v, config.B_c) // 2
    if accumulators + ENTRY_OVERHEAD > config.entry_registers:
        return Rejected(
            "wgmma_fits_at_entry",
            f"one wgmma has {accumulators} accumulators; a thread begins with "
            f"{config.entry_registers} registers and needs {ENTRY_OVERHEAD} of them for the rest",
        )
    return None
