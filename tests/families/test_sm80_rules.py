import dataclasses

import pytest

from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.rules import autotune_rejection, should_autotune_config

# B_r, B_c, n_warps, async, eager, swizzled, Q, K, V, buffer, opt_softmax
GOOD = FlashForwardKernelConfig(DType.FP16, 128, 64, 64, 4, True, True, True, 0, 2, 2, False, True)


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({}, None),
        ({"async_copy": False}, "eager_needs_async"),
        ({"async_copy": False, "eager_load_blocks": False}, None),
        ({"eager_load_blocks": False}, None),
        ({"B_c": 32, "Q_mma_load_K_tiles": 2, "K_mma_load_K_tiles": 0}, "q_tiles_follow_k_tiles"),
        ({"B_c": 32, "Q_mma_load_K_tiles": 2, "K_mma_load_K_tiles": 4}, "q_tiles_follow_k_tiles"),
        ({"Q_mma_load_K_tiles": 0, "K_mma_load_K_tiles": 4}, None),
        ({"n_warps": 8}, "eight_warps_need_more_rows"),
        ({"n_warps": 2}, None),
        ({"B_c": 32}, "registers_for_3_ctas"),
        ({"B_c": 32, "Q_mma_load_K_tiles": 2}, None),
        ({"Q_mma_load_K_tiles": 2}, "registers_hold_q"),
        ({"B_c": 128, "Q_mma_load_K_tiles": 2}, None),
        ({"B_c": 128}, None),
        ({"B_r": 128}, "register_pressure_at_128_rows"),
        ({"B_r": 128, "n_warps": 8}, "register_pressure_at_128_rows"),
        ({"B_r": 128, "n_warps": 8, "Q_mma_load_K_tiles": 2}, None),
        ({"B_r": 128, "B_c": 32, "Q_mma_load_K_tiles": 2}, None),
        ({"B_r": 32, "n_warps": 2}, None),
        ({"B_r": 256}, None),
        ({"d_head": 192, "Q_mma_load_K_tiles": 2}, None),
        ({"d_head": 256, "B_r": 128, "Q_mma_load_K_tiles": 2}, "outputs_leave_registers"),
        ({"d_head": 256, "B_r": 128, "n_warps": 8, "Q_mma_load_K_tiles": 2}, None),
        ({"d_head": 128, "B_r": 128, "Q_mma_load_K_tiles": 2}, None),
        # the first rule that applies is the one named
        ({"async_copy": False, "n_warps": 8, "B_c": 32}, "eager_needs_async"),
        ({"n_warps": 8, "B_c": 32}, "eight_warps_need_more_rows"),
    ],
)
def test_rules(changes: dict[str, int], rule: str | None) -> None:
    config = dataclasses.replace(GOOD, **changes)
    rejected = autotune_rejection(config)
    assert (rejected and rejected.constraint) == rule
    assert should_autotune_config(config) is (rule is None)
