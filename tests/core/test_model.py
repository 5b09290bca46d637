import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import DeviceInfo, Variant
from fa_tune.core.workload import (
    MASKS,
    MAX_SCALE,
    MIN_SCALE,
    DType,
    Workload,
    benchmark_batch,
    benchmark_workload,
)
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from tests.families.strategies import configs

sizes = st.integers(1, 2**31)


@pytest.mark.parametrize("text", ["FP16", "fp16", " Fp16 ", "5"])
def test_dtype_from_string(text: str) -> None:
    assert DType.from_string(text) is DType.FP16


@pytest.mark.parametrize("text", ["", "FP32", "6", "-5", "5.0", "half", "²", "+-5", "__class__"])
def test_unknown_dtype_lists_the_known(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"allowed: FP16 \(5\), BF16 \(15\)"):
        DType.from_string(text)


scales = st.none() | st.floats(MIN_SCALE, MAX_SCALE)
workloads = st.builds(
    lambda batch, kv_heads, group, q, kv, d, dtype, mask, lse, scale: Workload(
        *(batch, kv_heads * group, kv_heads, q, kv, d, dtype),
        causal=mask != "full",
        bottom_right=mask == "causal_br",
        lse=lse,
        softmax_scale=scale,
    ),
    *([sizes] * 6),
    st.sampled_from(DType),
    st.sampled_from(MASKS),
    st.booleans(),
    scales,
)


@given(workloads)
def test_workload_key_round_trip(workload: Workload) -> None:
    assert Workload.from_key(workload.key) == workload


@given(workloads, workloads)
def test_workloads_have_one_order_and_equal_ones_one_key(a: Workload, b: Workload) -> None:
    assert (a < b) + (b < a) + (a == b) == 1
    assert (a == b) == (a.key == b.key)
    assert sorted([a, b]) == sorted([b, a])


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("b4_h32_kv8_q7_k9_d64_fp16_causal", {"causal": True}),
        ("b4_h32_kv8_q7_k9_d64_fp16_causal_br", {"causal": True, "bottom_right": True}),
        ("b4_h32_kv8_q7_k9_d64_fp16_full_lse", {"lse": True}),
        ("b4_h32_kv8_q7_k9_d64_fp16_full_scale0.1", {"softmax_scale": 0.1}),
        ("b4_h32_kv8_q7_k9_d64_fp16_full_lse_scale1e-05", {"lse": True, "softmax_scale": 1e-5}),
        ("b4_h32_kv8_q7_k9_d64_fp16_full", {"softmax_scale": 0.125}),
        ("b4_h32_kv8_q7_k9_d64_fp16_full_scale2.0", {"softmax_scale": 2}),
    ],
)
def test_a_key_states_what_is_not_usual(key: str, changes: dict[str, Any]) -> None:
    plain = Workload(4, 32, 8, 7, 9, 64, DType.FP16)
    assert plain.key == "b4_h32_kv8_q7_k9_d64_fp16_full"
    assert dataclasses.replace(plain, **changes).key == key
    assert Workload.from_key(key) == dataclasses.replace(plain, **changes)


def test_alignments_of_one_mask_are_one_workload() -> None:
    both = [Workload(1, 1, 1, 9, 9, 64, DType.FP16, True, br) for br in (False, True)]
    assert both[0] == both[1]
    assert both[1].key == "b1_h1_kv1_q9_k9_d64_fp16_causal"
    assert Workload.from_key("b1_h1_kv1_q9_k9_d64_fp16_causal_br") == both[0]


@pytest.mark.parametrize(
    ("q", "kv", "bottom_right", "diagonal"),
    [(7, 9, False, 0), (7, 9, True, 2), (9, 7, True, -2), (9, 9, True, 0)],
)
def test_the_diagonal(q: int, kv: int, bottom_right: bool, diagonal: int) -> None:
    workload = Workload(1, 1, 1, q, kv, 64, DType.FP16, True, bottom_right)
    assert workload.diagonal == diagonal
    last_query_sees = min(q - 1 + diagonal, kv - 1)
    assert (last_query_sees == kv - 1) == (bottom_right or q >= kv)


def test_the_scale() -> None:
    workload = Workload(1, 1, 1, 1, 1, 64, DType.FP16)
    assert workload.scale == 0.125
    assert dataclasses.replace(workload, softmax_scale=3.0).scale == 3.0
    assert dataclasses.replace(workload, d_head=256).scale == 1 / 16


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-31, 1e31, math.inf, math.nan])
def test_scales_that_fp32_cannot_multiply_by_are_refused(scale: float) -> None:
    with pytest.raises(InvalidConfig, match="softmax_scale must be between 1e-30 and 1e"):
        Workload(1, 1, 1, 1, 1, 64, DType.FP16, softmax_scale=scale)


def test_without_a_mask_there_is_nothing_to_align() -> None:
    with pytest.raises(InvalidConfig, match="this workload has no mask"):
        Workload(1, 1, 1, 1, 2, 64, DType.FP16, bottom_right=True)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "b4_h32_kv8_q1_k4096_d128_bf16",
        "b4_h32_kv8_q1_k4096_d128_bf16_causal ",
        "b4_h32_kv8_q1_k4096_d128_fp8_full",
        "b-4_h32_kv8_q1_k4096_d128_fp16_full",
        "b4_h32_kv8_q1_k4096_d128_fp16_full_br",
        "b4_h32_kv8_q1_k4096_d128_fp16_causal_scale",
        "b4_h32_kv8_q1_k4096_d128_fp16_causal_scale1e",
        "b4_h32_kv8_q1_k4096_d128_fp16_causal_scale1_lse",
    ],
)
def test_no_workload_key(key: str) -> None:
    with pytest.raises(InvalidConfig, match="not a workload key"):
        Workload.from_key(key)


@pytest.mark.parametrize(
    "name", ["batch", "heads", "kv_heads", "seq_len_q", "seq_len_kv", "d_head"]
)
def test_workload_sizes_are_at_least_one(name: str) -> None:
    workload = Workload(1, 2, 1, 16, 16, 64, DType.FP16)
    with pytest.raises(InvalidConfig, match=f"{name} must be at least 1, not 0"):
        dataclasses.replace(workload, **{name: 0})


def test_kv_heads_divide_heads() -> None:
    with pytest.raises(InvalidConfig, match="3 kv heads do not divide 8 heads"):
        Workload(1, 8, 3, 16, 16, 64, DType.FP16)


@pytest.mark.parametrize(
    ("seq_len", "batch"),
    [(1, 16), (512, 16), (1024, 16), (2048, 16), (4096, 16), (8192, 8), (16384, 4), (131072, 1)],
)
def test_benchmark_shapes(seq_len: int, batch: int) -> None:
    assert benchmark_batch(seq_len) == batch
    assert benchmark_workload(seq_len, 128, DType.FP16) == Workload(
        batch, 16, 16, seq_len, seq_len, 128, DType.FP16
    )


@given(configs)
def test_variant_key_round_trip(config: FlashForwardKernelConfig) -> None:
    variant = Variant("sm80", config.short_form())
    assert Variant.from_key(variant.key) == variant


@pytest.mark.parametrize("key", ["", "sm80", "sm80:", ":(FP16)"])
def test_no_variant_key(key: str) -> None:
    with pytest.raises(InvalidConfig, match="not a variant key"):
        Variant.from_key(key)


def test_device_slug() -> None:
    assert DeviceInfo("NVIDIA H100 80GB HBM3", (9, 0), "570").slug == "nvidia_h100_80gb_hbm3"
    assert DeviceInfo(" GeForce RTX™ 4090 (x) ", (8, 9), "570").slug == "geforce_rtx_4090_x"
