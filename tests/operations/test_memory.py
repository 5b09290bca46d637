"""Rates of memory, where it may be the limit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from fa_tune.core.roofline import ROOFS
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.flops import moved_bytes
from fa_tune.operations.forward.spec import keys_seen
from fa_tune.operations.memory import memory_rate

DECODE = Workload.from_key("b16_h64_kv8_q1_k8192_d128_bf16_full")
PREFILL = Workload.from_key("b16_h16_kv16_q4096_k4096_d128_bf16_full")


def test_decoding_reads_keys_and_values_once() -> None:
    queries_and_result = 2 * 16 * 64 * 128 * 2
    assert moved_bytes(DECODE) == 2 * 16 * 8 * 8192 * 128 * 2 + queries_and_result
    found = memory_rate(DECODE, 122e-6, "NVIDIA H200", 0.97)
    assert found is not None
    assert found.bytes_per_s == pytest.approx(4.405e12, rel=1e-3)
    assert found.of_peak == pytest.approx(found.bytes_per_s / ROOFS["NVIDIA H200"].bytes_per_s)
    assert "97 % of the speed of a bare read" in found.sentence


def test_only_the_keys_that_some_query_sees_are_read() -> None:
    workload = Workload.from_key("b2_h8_kv2_q4_k1000_d128_bf16_causal_br_left99")
    queries_and_result = 2 * 2 * 4 * 8 * 128 * 2
    # The first query sees 100 keys, each of the others one more.
    assert moved_bytes(workload) == 2 * 2 * 103 * 2 * 128 * 2 + queries_and_result


def test_a_window_counts_in_each_sequence_of_a_cache() -> None:
    workload = Workload.from_key(
        "b3_h8_kv2_q1_k700_d128_bf16_causal_br_left99_cache50+0+700_page16"
    )
    queries_and_result = 2 * 3 * 8 * 128 * 2
    lengths, page_table = 3 * 4, 3 * 44 * 4
    keys = 50 + 0 + 100
    assert (
        moved_bytes(workload) == 2 * keys * 2 * 128 * 2 + queries_and_result + lengths + page_table
    )


@pytest.mark.parametrize("seed", range(40))
def test_keys_that_are_seen_are_those_of_any_query(seed: int) -> None:
    dice = random.Random(seed)
    q, kv = dice.randrange(1, 9), dice.randrange(1, 30)
    workload = Workload(
        *(2, 1, 1, q, kv, 64, DType.BF16),
        causal=dice.random() < 0.5,
        window_left=dice.choice((None, 0, 1, 5, 20)),
        window_right=dice.choice((None, 0, 1, 5, 20)),
        cache_lengths=dice.choice(("", f"{kv}+0+{kv // 2}")),
    )
    if workload.aligned and dice.random() < 0.5:
        workload = replace(workload, bottom_right=True)
    members = workload.members if workload.cached else [(q, kv)] * workload.batch
    seen = 0
    for n_q, n_kv in members:
        diagonal = n_kv - n_q if workload.bottom_right or workload.cached else 0
        right = 0 if workload.causal else workload.window_right
        first, last = workload.window_left, right
        seen += sum(
            any(
                (last is None or j <= i + diagonal + last)
                and (first is None or j >= i + diagonal - first)
                for i in range(n_q)
            )
            for j in range(n_kv)
        )
    assert keys_seen(workload) == seen


def test_of_an_unknown_gpu_there_is_no_share() -> None:
    found = memory_rate(DECODE, 122e-6, "NVIDIA X")
    assert found is not None
    assert (found.of_peak, found.of_read) == (None, None)


def test_where_there_is_much_to_compute_memory_says_nothing() -> None:
    assert memory_rate(PREFILL, 6e-3, "NVIDIA H200") is None
