"""One import for the names that scripts use: configs, their parsing, sets and FLOP counts."""

from __future__ import annotations

from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.names import (
    parse_demangled,
    parse_demangled_typed,
    parse_kernel_name_into_config,
    parse_short_form,
    short_label,
)
from fa_tune.families.sm80.rules import autotune_rejection, should_autotune_config
from fa_tune.families.sm80.sets import (
    get_autotuning_kernel_configs,
    get_kernel_configs,
    get_kernel_progression_configs,
    get_kernels_to_build,
    select_configs,
)
from fa_tune.operations import flops

__all__ = [
    "DType",
    "FlashForwardKernelConfig",
    "autotune_rejection",
    "calc_self_attn_flop",
    "calc_total_flop",
    "get_autotuning_kernel_configs",
    "get_kernel_configs",
    "get_kernel_progression_configs",
    "get_kernels_to_build",
    "parse_demangled",
    "parse_demangled_typed",
    "parse_kernel_name_into_config",
    "parse_short_form",
    "select_configs",
    "short_label",
    "should_autotune_config",
]


def calc_total_flop(
    n_samples: int, n_heads: int, seq_len: int, B_r: int, B_c: int, d_head: int
) -> int:
    """Operations of a tiled forward pass with its softmax bookkeeping and epilogue.

    Raises InvalidConfig when a block does not divide `seq_len`.
    """
    return flops.total_flop(_square(n_samples, n_heads, seq_len, d_head), B_r, B_c)


def calc_self_attn_flop(n_samples: int, n_heads: int, seq_len: int, d_head: int) -> int:
    """n_samples·n_heads·(4·s²·d + 6·s²), s = seq_len."""
    return flops.attn_flop(_square(n_samples, n_heads, seq_len, d_head))


def _square(n_samples: int, n_heads: int, seq_len: int, d_head: int) -> Workload:
    # The element type does not enter a count of operations.
    return Workload(n_samples, n_heads, n_heads, seq_len, seq_len, d_head, DType.FP16)
