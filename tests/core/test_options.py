"""The grid of workloads that options span."""

from typing import Any

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.options import WorkloadOptions
from fa_tune.core.workload import MASKS, DType, Workload, benchmark_workload

FP16 = (DType.FP16,)


def keys(**options: object) -> list[str]:
    given = WorkloadOptions(dtypes=FP16, **options)  # type: ignore[arg-type]
    return [w.key for w in given.workloads()]


def test_by_default_the_benchmark_shapes() -> None:
    assert WorkloadOptions().workloads() == tuple(
        benchmark_workload(4096, 128, dtype) for dtype in (DType.FP16, DType.BF16)
    )


def test_every_length_of_queries_with_every_length_of_keys() -> None:
    found = keys(seq_lens=(512, 16384), seq_lens_kv=(1, 8192), heads=2)
    assert found == [
        "b16_h2_kv2_q512_k1_d128_fp16_full",
        "b8_h2_kv2_q512_k8192_d128_fp16_full",
        "b4_h2_kv2_q16384_k1_d128_fp16_full",
        "b4_h2_kv2_q16384_k8192_d128_fp16_full",
    ]


def test_every_batch_with_every_length() -> None:
    found = keys(seq_lens=(1,), seq_lens_kv=(512, 8192), batches=(1, 64), heads=8, kv_heads=2)
    assert found == [
        "b1_h8_kv2_q1_k512_d128_fp16_full",
        "b64_h8_kv2_q1_k512_d128_fp16_full",
        "b1_h8_kv2_q1_k8192_d128_fp16_full",
        "b64_h8_kv2_q1_k8192_d128_fp16_full",
    ]


def test_a_problem_that_two_masks_describe_is_there_once() -> None:
    found = keys(seq_lens=(64,), seq_lens_kv=(64, 96), masks=MASKS, batches=(1,), heads=1)
    assert found == [
        "b1_h1_kv1_q64_k64_d128_fp16_full",
        "b1_h1_kv1_q64_k96_d128_fp16_full",
        "b1_h1_kv1_q64_k64_d128_fp16_causal",
        "b1_h1_kv1_q64_k96_d128_fp16_causal",
        "b1_h1_kv1_q64_k96_d128_fp16_causal_br",
    ]


def test_scale_and_log_sum_exp_are_every_workloads() -> None:
    found = keys(
        seq_lens=(64, 128), batches=(1,), heads=1, common={"lse": True, "softmax_scale": 0.5}
    )
    assert found == [
        "b1_h1_kv1_q64_k64_d128_fp16_full_lse_scale0.5",
        "b1_h1_kv1_q128_k128_d128_fp16_full_lse_scale0.5",
    ]
    assert all(Workload.from_key(key).lse for key in found)


def test_what_no_workload_can_be_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="softmax_scale must be between"):
        keys(common={"softmax_scale": 0.0})
    with pytest.raises(InvalidConfig, match="3 kv heads do not divide 16 heads"):
        keys(kv_heads=3)


def test_a_window_that_hides_nothing_for_its_alignment_is_refused() -> None:
    window: dict[str, Any] = {"common": {"window_left": 127}, "batches": (1,), "heads": 1}
    decoding: dict[str, Any] = {"seq_lens": (1,), "seq_lens_kv": (8192,), **window}
    with pytest.raises(InvalidConfig, match="--mask causal_br"):
        keys(**decoding)
    assert keys(masks=("causal_br",), **decoding) == [
        "b1_h1_kv1_q1_k8192_d128_fp16_full_br_left127"
    ]
    cached = {**decoding, "common": {"window_left": 127, "cache_lengths": "equal"}}
    assert keys(**cached) == ["b1_h1_kv1_q1_k8192_d128_fp16_full_br_left127_cacheequal"]
    assert keys(seq_lens=(64, 512), **window) == [
        "b1_h1_kv1_q64_k64_d128_fp16_full",
        "b1_h1_kv1_q512_k512_d128_fp16_full_left127",
    ]


def test_the_head_dimension_of_values_is_every_workloads_and_a_kinds() -> None:
    grid = WorkloadOptions(d_heads=(128, 192), common={"d_head_v": 128, "lse": True})
    assert grid.d_head_v == 128
    assert {(w.d_head, w.d_v) for w in grid.workloads()} == {(128, 128), (192, 128)}
    of_kind = grid.with_kind(DType.BF16, 256, 64, "forward")
    assert {(w.dtype, w.d_head, w.d_v, w.lse) for w in of_kind.workloads()} == {
        (DType.BF16, 256, 64, True)
    }
    assert {w.d_v for w in grid.with_kind(DType.BF16, 256, 256, "forward").workloads()} == {256}


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({"batches": (3, 64)}, {"lengths": "5+0+7"}),
        ({"seq_lens": (512,)}, {"lengths": "5+0+7"}),
        ({"batches": (64,)}, {"cache_lengths": "5+6"}),
        ({"seq_lens": (1,), "seq_lens_kv": (8192,)}, {"cache_lengths": "5+6"}),
    ],
)
def test_listed_lengths_of_another_size_than_is_asked_for_are_refused(
    options: dict[str, Any], lengths: dict[str, str]
) -> None:
    with pytest.raises(InvalidConfig, match="leave it out"):
        WorkloadOptions(dtypes=FP16, common=lengths, **options).workloads()
    (alone,) = WorkloadOptions(dtypes=FP16, seq_lens=(7,), common={"lengths": "5+0+7"}).workloads()
    assert (alone.batch, alone.seq_len_q) == (3, 7)
