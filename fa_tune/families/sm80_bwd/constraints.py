"""Which configs of the `sm80_bwd` family can run; kernels/sm80/bwd/constraints.cuh asserts the
rules with the same sentences."""

from __future__ import annotations

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.families.constraints import Rule, broken_rule, smem_does_not_fit, too_old
from fa_tune.families.sm80_bwd.config import PADDED_TO, Sm80BackwardConfig

REGISTERS, OTHER_REGISTERS = 65536, 40  # of a multiprocessor; of a thread, beside accumulators
MOST_REGISTERS = 255


def _is_head(d: int) -> bool:
    return 32 <= d <= 256 and d % 32 == 0


def _copies_divide_evenly(c: Sm80BackwardConfig) -> bool:
    """Whether copy passes cover every block; see `sm80.constraints`."""
    blocks = ((rows, d // 8) for rows in (c.B_r, c.B_c) for d in (c.d_head, c.d_v))
    return all(rows * (chunks & -chunks) % c.threads == 0 for rows, chunks in blocks)


def _fits_registers(c: Sm80BackwardConfig) -> bool:
    gradients, scores = c.B_c * (c.d_head + c.d_v), 2 * c.B_r * c.B_c
    own = (gradients + max(scores, c.B_r * c.d_head)) // c.threads + OTHER_REGISTERS
    return own <= min(MOST_REGISTERS, REGISTERS // (c.threads * c.ctas))


CONSTRAINTS: tuple[Rule[Sm80BackwardConfig], ...] = (
    (
        "d_heads_whole_chunk_groups",
        "d_head and d_head_v must be multiples of 32 between 32 and 256",
        lambda c: _is_head(c.d_head) and _is_head(c.d_v),
    ),
    (
        "queries_fill_the_workspace",
        "B_r must be 32, 64 or 128, parts of the 128 rows that the workspace is padded to",
        lambda c: c.B_r >= 32 and PADDED_TO % c.B_r == 0,
    ),
    (
        "warps_are_a_power_of_two",
        "n_warps must be 1, 2, 4, 8 or 16",
        lambda c: c.n_warps in (1, 2, 4, 8, 16),
    ),
    (
        "column_warps_divide_warps",
        "column_warps must be a power of two that divides n_warps",
        lambda c: c.column_warps > 0 and c.n_warps % c.column_warps == 0,
    ),
    (
        "warps_own_whole_mma_tiles",
        "B_c must be a multiple of 16 n_warps / column_warps, and B_r, d_head and d_head_v of 16 "
        "column_warps",
        lambda c: (
            c.B_c >= 16
            and c.B_c % (16 * c.row_warps) == 0
            and not any(n % (16 * c.column_warps) for n in (c.B_r, c.d_head, c.d_v))
        ),
    ),
    (
        "query_warps_own_whole_mma_tiles",
        "B_r has too few rows for the warps of dQ's product in one pass",
        lambda c: c.two_pass or c.B_r % (16 * c.query_warps) == 0,
    ),
    (
        "copies_divide_evenly",
        "the 16-byte chunks of a block must divide evenly among the threads",
        _copies_divide_evenly,
    ),
    ("stages_in_reach", "stages must be 1 or 2", lambda c: c.stages in (1, 2)),
    ("ctas_in_reach", "ctas must be between 1 and 4", lambda c: 1 <= c.ctas <= 4),
    (
        "accumulators_fit_registers",
        "dK, dV, S and dP need more registers than ctas CTAs of so many warps leave a thread",
        _fits_registers,
    ),
)


def constraints(config: Sm80BackwardConfig, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    return (
        too_old(limits, (8, 0))
        or broken_rule(config, CONSTRAINTS)
        or smem_does_not_fit(config.smem_bytes, limits, config.ctas, "ctas")
    )
