from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.errors import InvalidConfig
from fa_tune.families.sm80 import FlashForwardKernelConfig
from fa_tune.model import (
    DeviceInfo,
    DType,
    Variant,
    Workload,
    benchmark_batch,
    benchmark_workload,
)
from tests.families.strategies import configs

sizes = st.integers(1, 2**31)


# DType ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["FP16", "fp16", " Fp16 ", "5"])
def test_dtype_from_string(text: str) -> None:
    assert DType.from_string(text) is DType.FP16


@pytest.mark.parametrize("text", ["", "FP32", "6", "-5", "5.0", "half", "²", "+-5", "__class__"])
def test_unknown_dtype_lists_the_known(text: str) -> None:
    with pytest.raises(InvalidConfig, match=r"allowed: FP16 \(5\), BF16 \(15\)"):
        DType.from_string(text)


def test_dtype_values_and_spellings() -> None:
    assert (DType.FP16, DType.BF16) == (5, 15)
    assert [d.to_cpp_str() for d in DType] == ["torch::kFloat16", "torch::kBFloat16"]
    assert [d.size_bytes for d in DType] == [2, 2]
    for dtype in DType:
        assert DType.from_string(dtype.name) is DType.from_string(str(int(dtype))) is dtype


def test_dtype_in_torch() -> None:
    torch = pytest.importorskip("torch")
    assert DType.FP16.to_torch_dtype() is torch.float16
    assert DType.BF16.to_torch_dtype() is torch.bfloat16


# Workload -------------------------------------------------------------------------------------


@given(sizes, sizes, sizes, sizes, sizes, sizes, st.sampled_from(DType), st.booleans())
def test_workload_key_round_trip(
    batch: int, kv_heads: int, group: int, q: int, kv: int, d: int, dtype: DType, causal: bool
) -> None:
    workload = Workload(batch, kv_heads * group, kv_heads, q, kv, d, dtype, causal)
    assert Workload.from_key(workload.key) == workload


def test_workload_key() -> None:
    workload = Workload(4, 32, 8, 1, 4096, 128, DType.BF16, causal=True)
    assert workload.key == "b4_h32_kv8_q1_k4096_d128_bf16_causal"


@pytest.mark.parametrize(
    "key",
    [
        "",
        "b4_h32_kv8_q1_k4096_d128_bf16",
        "b4_h32_kv8_q1_k4096_d128_bf16_causal ",
        "b4_h32_kv8_q1_k4096_d128_fp8_full",
        "b-4_h32_kv8_q1_k4096_d128_fp16_full",
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


# Variant, DeviceInfo --------------------------------------------------------------------------


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
