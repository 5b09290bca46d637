"""Which configs of the `sm90_bwd` family can run; kernels/sm90/bwd/constraints.cuh asserts the
rules with the same sentences."""

from __future__ import annotations

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected
from fa_tune.families.constraints import Rule, broken_rule, not_exactly, smem_does_not_fit
from fa_tune.families.sm90_bwd.config import (
    KEYS,
    WIDE_ROWS,
    Sm90BackwardConfig,
    rows_of_step,
)

OTHER_V = (192, 128)  # head dimensions of Q and V
MAX_CLUSTER = 8  # CTAs, on every device
REGISTERS = 224  # of a thread, for what dQ's pass accumulates and multiplies


def holds_d_head(d_head: int) -> bool:
    """Whether there are kernels for such Q and K."""
    return 32 <= d_head <= 256 and d_head % 8 == 0


CONSTRAINTS: tuple[Rule[Sm90BackwardConfig], ...] = (
    (
        "d_head_fits_registers",
        "d_head must be a multiple of 8 between 32 and 256",
        lambda c: holds_d_head(c.d_head),
    ),
    (
        "d_head_v_has_kernels",
        "d_head_v must be 0, as d_head, or 128 at d_head 192",
        lambda c: c.d_v == c.d_head or (c.d_head, c.d_v) == OTHER_V,
    ),
    (
        "wide_heads_have_two_passes",
        "d_head above 128 needs two_pass: with the 64 keys whose gradients fit in registers, adds "
        "to sums of dQ take longer than all products",
        lambda c: c.two_pass or not c.is_wide,
    ),
    (
        "wide_heads_have_one_tile",
        "d_head above 128 leaves no room for dynamic",
        lambda c: not (c.is_wide and c.dynamic),
    ),
    (
        "warpgroups_share_dq",
        "B_r must be 128 up to d_head 64 and 64 above, for two warpgroups to have up to 64 x 64 of "
        "dQ each",
        lambda c: c.B_r == rows_of_step(c.d_head),
    ),
    (
        "keys_are_two_warpgroups",
        "B_c must be 128, 64 keys for each of two warpgroups or, above d_head 128, for both in "
        "turn, or 64 there",
        lambda c: c.B_c == KEYS or (c.is_wide and c.B_c == WIDE_ROWS),
    ),
    ("q_stages_in_reach", "q_stages must be 2 or 3", lambda c: c.q_stages in (2, 3)),
    (
        "dq_keys_fit_a_wgmma",
        "dq_keys must be a multiple of 16 between 48 and 128",
        lambda c: 48 <= c.dq_keys <= 128 and c.dq_keys % 16 == 0,
    ),
    (
        "dq_keys_fit_registers",
        "dQ, S and dP of dq_keys keys need more registers than a thread has",
        lambda c: not c.two_pass or c.padded_d // 2 + c.dq_keys // 4 * 5 <= REGISTERS,
    ),
    (
        "dq_keys_have_a_pass",
        "dq_keys other than 96 need two_pass",
        lambda c: c.two_pass or c.dq_keys == 96,
    ),
    (
        "same_step_has_dq",
        "same_step has no dQ with two_pass",
        lambda c: not (c.same_step and c.two_pass),
    ),
    (
        "cluster_in_range",
        "cluster must be between 1 and 8",
        lambda c: 1 <= c.cluster <= MAX_CLUSTER,
    ),
    (
        "clusters_have_one_tile",
        "a cluster has one block of keys: no dynamic, and above d_head 128 B_c 64",
        lambda c: c.cluster == 1 or not (c.dynamic or (c.is_wide and c.B_c == KEYS)),
    ),
    (
        "dq_cluster_in_range",
        "dq_cluster must be between 1 and 8",
        lambda c: 1 <= c.dq_cluster <= MAX_CLUSTER,
    ),
    (
        "dq_clusters_have_one_tile",
        "dq_cluster needs two_pass, and a tile for each cluster: no dynamic",
        lambda c: c.dq_cluster == 1 or (c.two_pass and not c.dynamic),
    ),
    (
        "same_step_meets",
        "warpgroups meet in same_step and take no turns",
        lambda c: not (c.same_step and c.turns),
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
