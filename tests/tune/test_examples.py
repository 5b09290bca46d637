"""What kernels are compiled for when certain features are to be verified."""

from __future__ import annotations

from typing import Any

import pytest

from fa_tune import families
from fa_tune.core import hooks
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType
from fa_tune.operations.traits import Traits
from fa_tune.tune.single import example, examples_of, is_special

HOOK = hooks.register("""
__device__ float score_hook(float score, int batch, int head, int query, int key) {
    return 0.5f * score;
}
""")


@pytest.mark.parametrize(
    ("common", "causal", "wanted"),
    [
        ({}, False, Traits()),
        ({"lse": True}, True, Traits(causal=True, lse=True)),
        ({"window_left": 4096, "sink": True}, True, Traits(causal=True, window=True, sink=True)),
        ({"window_right": 5}, False, Traits(causal=True)),
        ({"softcap": 30.0, "alibi": True}, False, Traits(softcap=True, alibi=True)),
        ({"score_hook": HOOK}, False, Traits(hook=HOOK)),
    ],
)
def test_each_feature_is_compiled_for(common: dict[str, Any], causal: bool, wanted: Traits) -> None:
    config = families.get("sm80").default_config(128, DType.FP16)
    workload = example(common, 128, 128, causal=causal)
    found = [Traits.parse(text) for text, _ in examples_of(config, workload)]
    assert [t.ragged for t in found] == [False, True]
    assert found[0] == wanted
    assert is_special(workload) == bool(common.keys() - {"lse"})


def test_packed_lengths_are_always_ragged() -> None:
    config = families.get("sm80").default_config(64, DType.BF16)
    workload = example({"lengths": "5+0+70x9+3+65", "window_left": 8}, 64, 64)
    assert list(examples_of(config, workload)) == [("ragged+window+packed", workload)]
    with pytest.raises(InvalidConfig, match="up to 16384"):
        example({"window_left": 1 << 20}, 128, 128)
