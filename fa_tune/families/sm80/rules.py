"""Which configs are worth a place in the tune set.

These are hunches about speed, each with a name and a reason; they keep the set small.
What cannot run at all is the family's constraints' business, not theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fa_tune.core.model import Rejected
from fa_tune.families.sm80.config import FlashForwardKernelConfig


@dataclass(frozen=True)
class TuneRule:
    """One hunch: `rejects(config)` is true for what it leaves out, `reason` says why."""

    name: str
    reason: str
    rejects: Callable[[FlashForwardKernelConfig], bool]


# The first rule that rejects a config names it.
TUNE_RULES = (
    TuneRule(
        "eager_needs_async",
        "eager loads gain nothing without async_copy: an ordinary load cannot run ahead of the "
        "arithmetic",
        lambda c: not c.async_copy and c.eager_load_blocks,
    ),
    TuneRule(
        "q_tiles_follow_k_tiles",
        "Q and K are multiplied k-tile by k-tile: staging them in different numbers unbalances "
        "the registers, unless all of Q stays there (Q_mma_load_K_tiles 0)",
        lambda c: c.Q_mma_load_K_tiles not in (0, c.K_mma_load_K_tiles),
    ),
    TuneRule(
        "eight_warps_need_more_rows",
        "64 rows are too few for 8 warps: each would own half an mma tile",
        lambda c: c.B_r == 64 and c.n_warps == 8,
    ),
    TuneRule(
        "registers_for_3_ctas",
        "64x32 blocks leave shared memory for 3 CTAs and more, but with all of Q in registers a "
        "thread is over the register threshold for 3 CTAs",
        lambda c: c.B_r == 64 and c.B_c == 32 and c.Q_mma_load_K_tiles == 0,
    ),
    TuneRule(
        "registers_hold_q",
        "at 64x64 and d_head up to 128 the registers have room for all of Q: staging Q again for "
        "every block only costs shared-memory reads",
        lambda c: c.B_r == 64 and c.B_c == 64 and c.Q_mma_load_K_tiles != 0 and c.d_head <= 128,
    ),
    TuneRule(
        "register_pressure_at_128_rows",
        "with 128 rows, all of Q in registers is over the register budget: Q must be loaded in "
        "k-tiles",
        lambda c: c.B_r == 128 and c.Q_mma_load_K_tiles == 0,
    ),
    TuneRule(
        "outputs_leave_registers",
        "above 128 columns, 32 rows of O per warp take all the registers that a thread can have",
        lambda c: c.d_v > 128 and c.B_r > 16 * c.n_warps,
    ),
)


def autotune_rejection(config: FlashForwardKernelConfig) -> Rejected | None:
    """The first rule that leaves `config` out of the tune set, or None if it is worth trying."""
    for rule in TUNE_RULES:
        if rule.rejects(config):
            return Rejected(rule.name, rule.reason)
    return None


def should_autotune_config(cfg: FlashForwardKernelConfig) -> bool:
    """Whether `cfg` belongs in a tune set."""
    return autotune_rejection(cfg) is None
