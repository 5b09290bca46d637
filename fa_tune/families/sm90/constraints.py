"""Which configs of the `sm90` family can run: the rules, and what is counted against a device.

kernels/sm90/constraints.cuh asserts the rules with the same sentences.
"""

from __future__ import annotations

from collections.abc import Callable

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.families.sm90.config import (
    ENTRY_OVERHEAD,
    GROUP_ROWS,
    REGISTER_BUDGET,
    Order,
    Rescale,
    Scheduler,
    Sm90Config,
)

MMA_K = 16  # the k-step of a wgmma with 16-bit elements

Check = Callable[[Sm90Config], bool]

# Name, sentence, test.
CONSTRAINTS: tuple[tuple[str, str, Check], ...] = (
    (
        "d_head_whole_panels",
        "d_head must be 64, 128, 192 or 256: whole panels of 64 columns, one wgmma wide at most",
        lambda c: c.d_head in (64, 128, 192, 256),
    ),
    (
        "consumers_fit_a_cta",
        "consumers must be between 1 and 4, beside the warpgroup that loads",
        lambda c: 1 <= c.consumers <= 4,
    ),
    (
        "consumers_own_64_rows",
        "B_r must be 64 * consumers * m_tiles, the rows of a wgmma for each tile of a warpgroup",
        lambda c: c.B_r == GROUP_ROWS * c.consumers * c.m_tiles,
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
        "pingpong needs at least 2 consumers to take turns",
        lambda c: c.consumers > 1 or not c.pingpong,
    ),
    (
        "pin_needs_overlap",
        "pin needs overlap: without it there is no product to keep the exponentials before",
        lambda c: c.overlap or not c.pin,
    ),
    (
        "pin_has_no_trust",
        "pin cannot be with trusting_rescale, whose exponentials go straight to P, which the last "
        "product has to have read",
        lambda c: not c.pin or c.rescale is not Rescale.TRUST,
    ),
    (
        "early_rescale_needs_overlap",
        "early_rescale needs overlap: without it the rescale is before the product anyway",
        lambda c: c.overlap or c.rescale is not Rescale.BEFORE_PRODUCT,
    ),
    (
        "carry_has_a_next_tile",
        "carry needs overlap, q_stages 2 and a scheduler that gives a CTA several tiles",
        lambda c: not c.carry or (c.overlap and c.q_stages == 2 and c.persistent),
    ),
    (
        "second_q_has_a_use",
        "q_stages 2 needs a scheduler that gives a CTA several tiles",
        lambda c: c.q_stages == 1 or c.persistent,
    ),
    (
        "pairs_are_static",
        "the paired order needs the static scheduler: a CTA takes both tiles of a pair",
        lambda c: c.order is not Order.PAIRED or c.scheduler is Scheduler.STATIC,
    ),
    (
        "v_stages_say_something",
        "v_stages must be 0, for as many as stages, or another number up to 8",
        lambda c: 0 <= c.v_stages <= 8 and c.v_stages != c.stages,
    ),
    (
        "m_tiles_in_reach",
        "m_tiles must be 1 or 2: more accumulators than that no thread has registers for",
        lambda c: c.m_tiles in (1, 2),
    ),
    (
        "cluster_in_reach",
        "cluster must be 1 or 2, CTAs that share their keys and values",
        lambda c: c.cluster in (1, 2),
    ),
    (
        "ctas_have_registers",
        "ctas must be 1; or up to 4 with 1 consumer, or 2 with 2: more leave too few registers",
        lambda c: (c.consumers, c.ctas) in REGISTER_BUDGET,
    ),
    (
        "split_diagonal_has_halves",
        "split_diagonal needs B_c to be a multiple of 32, for whole fragments in either half",
        lambda c: not c.split_diagonal or c.B_c % 32 == 0,
    ),
)


def device_rejection(limits: ArchLimits) -> Rejected | None:
    """Why no config runs on such a device, or None."""
    if limits.compute_capability == (9, 0):
        return None
    return Rejected("compute_capability", f"needs sm_90, the device is {limits.arch}")


def constraints(config: Sm90Config, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    if (why := device_rejection(limits)) is not None:
        return why
    for name, sentence, holds in CONSTRAINTS:
        if not holds(config):
            return Rejected(name, sentence)
    budget = config.register_budget
    if config.operand_registers > budget:
        return Rejected(
            "registers_fit",
            f"O, S, P and Q take {config.operand_registers} registers of a thread; with "
            f"{config.consumers * config.ctas} consumers on a multiprocessor there are {budget} "
            "for them",
        )
    accumulators = max(config.d_head, config.B_c) // 2
    if accumulators + ENTRY_OVERHEAD > config.entry_registers:
        return Rejected(
            "wgmma_fits_at_entry",
            f"one wgmma has {accumulators} accumulators; a thread begins with "
            f"{config.entry_registers} registers and needs {ENTRY_OVERHEAD} of them for the rest",
        )
    allowed = limits.smem_per_sm_bytes // config.ctas - limits.smem_reserved_bytes
    allowed = min(limits.smem_per_block_bytes, allowed // 128 * 128)
    if config.smem_bytes > allowed:
        return Rejected(
            "smem_fits",
            f"needs {config.smem_bytes / 1024:g} KiB of shared memory, "
            f"{limits.arch} allows {allowed / 1024:g} KiB per CTA with ctas {config.ctas}",
        )
    return None
