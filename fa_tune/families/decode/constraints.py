"""Which configs of the `decode` family can run.

kernels/decode/constraints.cuh asserts the rules with the same sentences.
"""

from __future__ import annotations

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.families.constraints import (
    Rule,
    broken_rule,
    chunks_at_once,
    smem_does_not_fit,
    too_old,
)
from fa_tune.families.decode.config import (
    MMA_K,
    MMA_M,
    MOST_BLOCKS,
    MOST_TILE_KEYS,
    Combine,
    DecodeConfig,
    KVType,
)

MAX_WARPS = 16
OPERANDS = 4096  # most elements of O, and of Q, in the registers of a warp


def _copies_divide(config: DecodeConfig) -> bool:
    padded = (-(-d // MMA_K) * MMA_K for d in (config.d_head, config.d_v))
    rows = (d * config.kv_bytes // 2 for d in padded)  # of 16-bit elements
    return all(MMA_K * chunks_at_once(d) % (32 * config.row_warps) == 0 for d in rows)


CONSTRAINTS: tuple[Rule[DecodeConfig], ...] = (
    (
        "d_head_whole_chunks",
        "d_head must be a multiple of 8 between 32 and 256",
        lambda c: 32 <= c.d_head <= 256 and c.d_head % 8 == 0,
    ),
    (
        "d_head_v_whole_chunks",
        "d_head_v must be 0, as d_head, or a multiple of 8 between 32 and 256",
        lambda c: 32 <= c.d_v <= 256 and c.d_v % 8 == 0,
    ),
    (
        "e4m3_whole_chunk_groups",
        "e4m3 needs multiples of 64 as d_head and d_head_v: half of the chunks",
        lambda c: c.kv_type is KVType.SAME or (c.d_head % 64 == 0 and c.d_v % 64 == 0),
    ),
    (
        "n_warps_in_range",
        "n_warps must be between 1 and 16",
        lambda c: 1 <= c.n_warps <= MAX_WARPS,
    ),
    (
        "row_warps_divide_warps",
        "row_warps must divide n_warps: each group of so many warps has keys of its own",
        lambda c: c.row_warps >= 1 and c.n_warps % c.row_warps == 0,
    ),
    (
        "warps_own_whole_mma_tiles",
        "B_r must be a multiple of 16 * row_warps, so that every warp has whole 16-row mma tiles",
        lambda c: c.B_r >= MMA_M and c.B_r % (MMA_M * c.row_warps) == 0,
    ),
    (
        "rows_fit_registers",
        "Q and O of a warp's rows must fit its registers: rows times d_head at most 4096",
        lambda c: c.B_r // c.row_warps * max(c.d_head, c.d_v) <= OPERANDS,
    ),
    (
        "groups_have_whole_k_steps",
        "B_c must be a multiple of 16 keys for each group of warps",
        lambda c: c.B_c >= MMA_K and c.B_c % (MMA_K * c.groups) == 0,
    ),
    (
        "copies_divide_evenly",
        "the 16-byte chunks of 16 keys must divide evenly among the threads of row_warps",
        _copies_divide,
    ),
    (
        "stages_in_range",
        "stages must be between 2 and 8",
        lambda c: 2 <= c.stages <= 8,
    ),
    (
        "ctas_in_range",
        "ctas_per_sm must be between 1 and 8",
        lambda c: 1 <= c.ctas_per_sm <= 8,
    ),
    (
        "min_blocks_in_range",
        f"min_blocks must be between 1 and {MOST_BLOCKS}",
        lambda c: 1 <= c.min_blocks <= MOST_BLOCKS,
    ),
    (
        "cluster_in_range",
        "cluster must be 1, 2, 4 or 8",
        lambda c: c.cluster in (1, 2, 4, 8),
    ),
    (
        "cluster_shares_tiles",
        "with a cluster for each tile there are no aligned, min_blocks, combine, tile_keys and "
        "by_rows to choose",
        lambda c: (
            c.cluster == 1
            or (
                c.min_blocks == 1
                and not c.aligned
                and c.combine is Combine.LAST
                and c.tile_keys == 0
                and not c.by_rows
            )
        ),
    ),
    (
        "sectors_share_lines",
        "rows of whole lines of 128 bytes have no sectors to choose",
        lambda c: not (c.sectors and c.has_whole_lines),
    ),
    (
        "whole_tiles_have_no_parts",
        "whole tiles leave no cluster, aligned, min_blocks, combine and tile_keys to choose",
        lambda c: (
            not c.order
            or (
                c.cluster == 1
                and not c.aligned
                and c.min_blocks == 1
                and c.combine is Combine.LAST
                and c.tile_keys == 0
            )
        ),
    ),
    (
        "tile_keys_in_range",
        f"tile_keys must be between 0 and {MOST_TILE_KEYS}",
        lambda c: 0 <= c.tile_keys <= MOST_TILE_KEYS,
    ),
)


def device_rejection(limits: ArchLimits) -> Rejected | None:
    """Why no config runs on a device with `limits`, or None."""
    return too_old(limits, (8, 0))


def constraints(config: DecodeConfig, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    return (
        device_rejection(limits)
        or broken_rule(config, CONSTRAINTS)
        or _device_lacks_a_feature(config, limits)
        or _threads_do_not_fit(config, limits)
        or smem_does_not_fit(config.smem_bytes, limits, config.ctas_per_sm, knob="ctas_per_sm")
    )


def _device_lacks_a_feature(config: DecodeConfig, limits: ArchLimits) -> Rejected | None:
    needs = (
        ("e4m3", config.kv_type is KVType.E4M3, (8, 9)),
        ("dependent", config.dependent, (9, 0)),
        ("cluster", config.cluster > 1, (9, 0)),
    )
    found = (too_old(limits, least, word) for word, wanted, least in needs if wanted)
    return next((why for why in found if why is not None), None)


def _threads_do_not_fit(config: DecodeConfig, limits: ArchLimits) -> Rejected | None:
    threads = config.ctas_per_sm * config.threads
    if threads <= limits.max_threads_per_sm:
        return None
    return Rejected(
        "threads_fit",
        f"{config.ctas_per_sm} CTAs have {threads} threads, {limits.arch} allows "
        f"{limits.max_threads_per_sm} on a multiprocessor",
    )
