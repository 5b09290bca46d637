"""What follows from a config and a workload before anything runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.workload import Workload
from fa_tune.operations.forward.spec import OPERATION
from fa_tune.search.strategies.points import with_derived, workload_of

FULL = Workload.from_key("b16_h16_kv16_q512_k512_d128_fp16_full")
CAUSAL = Workload.from_key("b16_h16_kv16_q1024_k1024_d128_fp16_causal")
USED = {"registers": 168.0, "threads": 384.0, "ctas_per_sm": 2.0, "smem_bytes": 1000.0}


def test_what_is_resident_is_of_all_ctas_of_a_multiprocessor() -> None:
    found = with_derived({}, USED, None)
    assert found["registers_resident"] == 168 * 384 * 2
    assert found["smem_resident_bytes"] == 2000
    assert {k: found[k] for k in USED} == USED


def test_a_block_that_does_not_divide_the_keys_computes_more() -> None:
    """512 keys in blocks of 112 are five blocks, 560 keys."""
    exact = with_derived({"B_r": 128, "B_c": 128}, USED, FULL)
    over = with_derived({"B_r": 128, "B_c": 112}, USED, FULL)
    assert exact["computed_pairs"] == 1.0
    assert over["computed_pairs"] == pytest.approx(560 / 512)
    assert exact["scores_per_cta"] == 128 * 128
    assert exact["rows_per_thread"] == pytest.approx(1 / 3)
    assert exact["ctas_per_slot"] == 16 * 16 * 4 / 2
    assert workload_of(CAUSAL.key) == CAUSAL
    assert workload_of("gemm 4096") is None
    assert with_derived({"n": 3}, {"a": 1.0}, CAUSAL) == {"a": 1.0}
    assert with_derived({"B_r": "x", "B_c": True}, {}, CAUSAL) == {}
    assert set(with_derived({"B_r": 64, "B_c": 64}, {}, CAUSAL)) == {
        "scores_per_cta",
        "computed_pairs",
    }


@given(
    st.sampled_from([16, 64, 96, 192]),
    st.sampled_from([16, 80, 128]),
    st.integers(1, 700),
    st.booleans(),
)
def test_no_kernel_computes_less_than_it_is_asked_for(
    rows: int, columns: int, length: int, causal: bool
) -> None:
    mask = "causal" if causal else "full"
    workload = Workload.from_key(f"b1_h2_kv2_q{length}_k{length}_d64_fp16_{mask}")
    found = with_derived({"B_r": rows, "B_c": columns}, {}, workload)
    assert found["computed_pairs"] >= 1.0
    # No more than one block over at either edge.
    most = (length + rows) * (length + columns) / OPERATION.unmasked_pairs(workload)
    assert found["computed_pairs"] <= most
