"""Rates of memory, where it may be the limit."""

import pytest

from fa_tune.core.roofline import ROOFS
from fa_tune.core.workload import Workload
from fa_tune.operations.flops import moved_bytes
from fa_tune.operations.memory import memory_rate

DECODE = Workload.from_key("b16_h64_kv8_q1_k8192_d128_bf16_full")
PREFILL = Workload.from_key("b16_h16_kv16_q4096_k4096_d128_bf16_full")


def test_decoding_reads_keys_and_values_once() -> None:
    queries_and_result = 2 * 16 * 64 * 128 * 2
    assert moved_bytes(DECODE) == 2 * 16 * 8 * 8192 * 128 * 2 + queries_and_result
    found = memory_rate(DECODE, 122e-6, "NVIDIA H200", 0.97)
    assert found.bytes_per_s == pytest.approx(4.405e12, rel=1e-3)
    assert found.of_peak == pytest.approx(found.bytes_per_s / ROOFS["NVIDIA H200"].bytes_per_s)
    assert "97 % of the speed of a bare read" in found.sentence


def test_only_the_keys_that_some_query_sees_are_read() -> None:
    workload = Workload.from_key("b2_h8_kv2_q4_k1000_d128_bf16_causal_br_left99")
    queries_and_result = 2 * 2 * 4 * 8 * 128 * 2
    # The first query sees 100 keys, each of the others one more.
    assert moved_bytes(workload) == 2 * 2 * 103 * 2 * 128 * 2 + queries_and_result


def test_of_an_unknown_gpu_there_is_no_share() -> None:
    found = memory_rate(DECODE, 122e-6, "NVIDIA X")
    assert (found.of_peak, found.of_read) == (None, None)


def test_where_there_is_much_to_compute_memory_says_nothing() -> None:
    assert memory_rate(PREFILL, 6e-3, "NVIDIA H200") is None
