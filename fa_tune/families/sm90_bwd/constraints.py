"""Which configs of the `sm90_bwd` family can run; kernels/sm90/bwd/constraints.cuh asserts the
rules with the same sentences."""

from __future__ import annotations

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.families.constraints import Rule, broken_rule, not_exactly, smem_does_not_fit
from fa_tune.families.sm90_bwd.config import KEYS, Sm90BackwardConfig

ROWS = {64: 128, 96: 64, 128: 64}  # query rows of a step, by head dimension

CONSTRAINTS: tuple[Rule[Sm90BackwardConfig], ...] = (
    (
        "d_head_fits_registers",
        "d_head must be 64, 96 or 128",
        lambda c: c.d_head in ROWS,
    ),
    ("d_head_v_is_d_head", "d_head_v must be 0, as d_head", lambda c: c.d_v == c.d_head),
    (
        "warpgroups_share_dq",
        "B_r must be 128 at d_head 64 and 64 above, for two warpgroups to have up to 64 x 64 of dQ "
        "each",
        lambda c: c.B_r == ROWS[c.d_head],
    ),
    (
        "keys_are_two_warpgroups",
        "B_c must be 128, 64 keys for each of two warpgroups",
        lambda c: c.B_c == KEYS,
    ),
    ("q_stages_in_reach", "q_stages must be 2 or 3", lambda c: c.q_stages in (2, 3)),
    (
        "dq_keys_fit_a_wgmma",
        "dq_keys must be a multiple of 16 between 64 and 128",
        lambda c: 64 <= c.dq_keys <= 128 and c.dq_keys % 16 == 0,
    ),
    (
        "dq_keys_have_a_pass",
        "dq_keys other than 96 need two_pass",
        lambda c: c.two_pass or c.dq_keys == 96,
    ),
)


def constraints(config: Sm90BackwardConfig, limits: ArchLimits) -> Rejected | None:
    """The first reason why `config` cannot run on a device with `limits`, or None."""
    smem = max(config.smem_bytes, config.dq_smem_bytes if config.two_pass else 0)
    return (
        not_exactly(limits, (9, 0))
        or broken_rule(config, CONSTRAINTS)
        or smem_does_not_fit(smem, limits)
    )
