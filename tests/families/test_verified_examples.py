"""Problems that kernels are verified on when certain features are asked for."""

from typing import Any

import pytest

from fa_tune import families
from fa_tune.core import hooks
from fa_tune.core.workload import DType
from fa_tune.tune.single import example, examples_of

HOOK = hooks.register("""
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    return 0.5f * score;
}
""")


@pytest.mark.parametrize("family", ["sm80", "sm90"])
@pytest.mark.parametrize("common", [{"score_hook": HOOK}, {"window_left": 1000, "sink": True}])
def test_each_kernel_is_tried_on_lengths_that_it_takes(family: str, common: dict[str, Any]) -> None:
    """Whole blocks where it knows of no other, and never fewer keys than the window needs."""
    of = families.get(family)
    for config in (of.default_config(d_head, DType.BF16) for d_head in (64, 96, 128, 192, 256)):
        workload = example(common, config.d_head, config.d_head, config.dtype, causal=True)
        for traits, asked in examples_of(config, workload):
            assert of.traits(config, asked) == traits
            assert asked.seq_len_kv > common.get("window_left", 0)
            assert {field: getattr(asked, field) for field in common} == common
