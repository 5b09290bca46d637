"""Which configs of the `sm80` family can run.

kernels/sm80/fwd/constraints.cuh asserts the rules with the same sentences.
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
from fa_tune.families.sm80.config import FlashForwardKernelConfig, ProductOrder

MMA_M = 16  # rows of one m16n8k16 tile
MMA_K = 16  # its k-step, and what one "k-tile" means in the config
BOX_ROWS = 256  # most rows of one bulk tensor copy
PING_PONG_CAPABILITY = (9, 0)


def _divides(tiles: int, total: int) -> bool:
    return tiles >= 0 and (tiles == 0 or total % tiles == 0)


def _divides_evenly(config: FlashForwardKernelConfig) -> bool:
    """Whether copy passes cover Q and blocks of K and V.  Of one row a pass covers as many chunks
    as the power of two in a row's chunks."""
    blocks = ((config.B_r, config.d_head), (config.B_c, config.d_head), (config.B_c, config.d_v))
    return all(rows * chunks_at_once(d) % config.threads == 0 for rows, d in blocks)


CONSTRAINTS: tuple[Rule[FlashForwardKernelConfig], ...] = (
    (
        "n_warps_fit_a_cta",
        "n_warps must be between 1 and 32, the warps of one CTA",
        lambda c: 1 <= c.n_warps <= 32,
    ),
    (
        "d_head_whole_k_steps",
        "d_head must be 32 or a multiple of 16 between 64 and 256",
        lambda c: c.d_head == 32 or (64 <= c.d_head <= 256 and c.d_head % MMA_K == 0),
    ),
    (
        "d_head_v_whole_k_steps",
        "d_head_v must be 0, as d_head, or a multiple of 16 between 32 and 256",
        lambda c: 32 <= c.d_v <= 256 and c.d_v % MMA_K == 0,
    ),
    (
        "warps_own_whole_mma_tiles",
        "B_r must be a multiple of 16 * n_warps, so that every warp owns whole 16-row mma tiles",
        lambda c: c.B_r >= MMA_M and c.B_r % (MMA_M * c.n_warps) == 0,
    ),
    (
        "kv_block_multiple_of_k_step",
        "B_c must be a multiple of 16, the k-step of the second product",
        lambda c: c.B_c >= MMA_K and c.B_c % MMA_K == 0,
    ),
    (
        "copies_divide_evenly",
        "the 16-byte chunks of a block must divide evenly among the threads",
        lambda c: c.ping_pong or _divides_evenly(c),
    ),
    (
        "eager_needs_async",
        "eager_load_blocks needs async_copy: an ordinary load cannot run ahead of the arithmetic",
        lambda c: c.async_copy or not c.eager_load_blocks,
    ),
    (
        "q_tiles_divide_d_head",
        "Q_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first product",
        lambda c: _divides(c.Q_mma_load_K_tiles, c.d_head // MMA_K),
    ),
    (
        "k_tiles_divide_d_head",
        "K_mma_load_K_tiles must be 0 or divide d_head / 16, the k-tiles of the first product",
        lambda c: _divides(c.K_mma_load_K_tiles, c.d_head // MMA_K),
    ),
    (
        "v_tiles_divide_kv_block",
        "V_mma_load_K_tiles must be 0 or divide B_c / 16, the k-tiles of the second product",
        lambda c: _divides(c.V_mma_load_K_tiles, c.B_c // MMA_K),
    ),
    (
        "kv_stages_in_range",
        "kv_stages must be between 1 and 8",
        lambda c: 1 <= c.kv_stages <= 8,
    ),
    (
        "stages_need_eager",
        "several kv_stages need eager_load_blocks, which fills them ahead",
        lambda c: c.kv_stages == 1 or c.eager_load_blocks,
    ),
    (
        "rescale_threshold_in_range",
        "rescale_threshold must be between 0 and 15: P reaches 2 to its power, fp16 ends at 65504",
        lambda c: 0 <= c.rescale_threshold <= 15,
    ),
    (
        "rescale_needs_opt_softmax",
        "a rescale_threshold needs optimized_softmax",
        lambda c: c.rescale_threshold == 0 or c.optimized_softmax,
    ),
    (
        "ping_pong_warps",
        "ping_pong needs 8 or 12 warps, two or three for each of the four schedulers",
        lambda c: not c.ping_pong or c.n_warps in (8, 12),
    ),
    (
        "ping_pong_copies",
        "ping_pong needs async_copy, eager_load_blocks and swizzled: bulk copies are all that",
        lambda c: not c.ping_pong or (c.async_copy and c.eager_load_blocks and c.swizzled),
    ),
    (
        "ping_pong_stages",
        "ping_pong needs two kv_stages or more: a place is refilled while the next is read",
        lambda c: not c.ping_pong or c.kv_stages >= 2,
    ),
    (
        "ping_pong_boxes",
        "ping_pong copies boxes of at most 256 rows: B_c and the rows of a turn must fit",
        lambda c: not c.ping_pong or (c.B_c <= BOX_ROWS and 4 * c.B_r <= BOX_ROWS * c.n_warps),
    ),
    (
        "ping_pong_tiles",
        "ping_pong streams fragments one k-tile ahead: load tiles must be 0 or 1 for Q, 1 for K "
        "and V, without buffer",
        lambda c: (
            not c.ping_pong
            or (
                c.Q_mma_load_K_tiles <= 1
                and c.K_mma_load_K_tiles == c.V_mma_load_K_tiles == 1
                and not c.mma_double_buffer_loads
            )
        ),
    ),
    (
        "ping_pong_softmax",
        "ping_pong does its softmax between turns, so interleaved_softmax has no place in it",
        lambda c: not (c.ping_pong and c.interleaved_softmax),
    ),
    (
        "order_needs_ping_pong",
        "a product_order is that of a turn, so it needs ping_pong",
        lambda c: c.ping_pong or c.product_order == ProductOrder.MEASURED,
    ),
)


def device_rejection(limits: ArchLimits) -> Rejected | None:
    """Why no config runs on a device with `limits`, or None."""
    return too_old(limits, (8, 0))


def constraints(config: FlashForwardKernelConfig, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    return (
        device_rejection(limits)
        or broken_rule(config, CONSTRAINTS)
        or _ping_pong_cannot_run(config, limits)
        or smem_does_not_fit(config.smem_bytes, limits)
    )


def _ping_pong_cannot_run(config: FlashForwardKernelConfig, limits: ArchLimits) -> Rejected | None:
    if not config.ping_pong or limits.compute_capability >= PING_PONG_CAPABILITY:
        return None
    return Rejected(
        "ping_pong_needs_9_0",
        f"ping_pong needs bulk tensor copies, sm_90 or later; the device is {limits.arch}",
    )
