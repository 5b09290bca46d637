from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune import flops
from fa_tune.errors import InvalidConfig
from fa_tune.model import DType, Workload

sizes = st.integers(1, 40)


def workload(seq_len_q: int, seq_len_kv: int, d_head: int, *, causal: bool = False) -> Workload:
    return Workload(1, 1, 1, seq_len_q, seq_len_kv, d_head, DType.FP16, causal)


@given(sizes, sizes)
def test_unmasked_pairs_are_those_of_the_mask(seq_len_q: int, seq_len_kv: int) -> None:
    mask = [(i, j) for i in range(seq_len_q) for j in range(seq_len_kv)]
    assert flops.unmasked_pairs(seq_len_q, seq_len_kv, False) == len(mask)
    assert flops.unmasked_pairs(seq_len_q, seq_len_kv, True) == sum(j <= i for i, j in mask)


def test_two_by_two_by_hand() -> None:
    # Q, K, V are 2x2.  Each of the 4 scores takes 2 multiplications and 2 additions (16), each
    # of the 4 outputs as many (16); the softmax six per score (24).
    w = workload(2, 2, 2)
    assert flops.matmul_flop(w) == 16 + 16
    assert flops.attn_flop(w) == 16 + 16 + 24
    # One 2x2 tile.  Softmax per row: 4 for each of 2 scores, 2 to rescale the outputs, 4 for the
    # statistics = 14.  Epilogue: 4 divisions.
    assert flops.tile_softmax_flop(2, 2, 2) == 2 * 14
    assert flops.kv_tile_flop(2, 2, 2) == 32 + 28
    assert flops.total_flop(w, 2, 2) == 32 + 28 + 4
    # Four 1x1 tiles: 8 for the products and 4 + 2 + 4 for the softmax each.
    assert flops.total_flop(w, 1, 1) == 4 * (8 + 10) + 4


def test_two_by_two_causal_by_hand() -> None:
    # Three of the four pairs attend: 3 scores and 3 weighted values of 4 operations each.
    w = workload(2, 2, 2, causal=True)
    assert flops.matmul_flop(w) == 12 + 12
    assert flops.attn_flop(w) == 12 + 12 + 18


def test_quoted_formulas() -> None:
    s, d = 4096, 128
    w = Workload(16, 16, 4, s, s, d, DType.BF16)
    assert flops.matmul_flop(w) == 16 * 16 * 4 * s * s * d
    assert flops.attn_flop(w) == 16 * 16 * (4 * s * s * d + 6 * s * s)
    tile = 4 * 64 * 32 * d + 64 * (4 * 32 + d + 4)
    assert flops.total_flop(w, 64, 32) == 16 * 16 * (s // 64) * ((s // 32) * tile + 64 * d)


@given(sizes, sizes, st.integers(1, 8), st.integers(1, 8))
def test_total_exceeds_the_products(rows: int, columns: int, B_r: int, B_c: int) -> None:
    w = workload(rows * B_r, columns * B_c, 16)
    assert flops.total_flop(w, B_r, B_c) > flops.matmul_flop(w)


@given(st.booleans(), st.integers(1, 5), st.integers(1, 5))
def test_counts_scale_with_batch_and_heads(causal: bool, batch: int, heads: int) -> None:
    one = workload(12, 8, 4, causal=causal)
    many = dataclasses.replace(one, batch=batch, heads=heads)
    assert flops.matmul_flop(many) == batch * heads * flops.matmul_flop(one)
    assert flops.attn_flop(many) == batch * heads * flops.attn_flop(one)


@pytest.mark.parametrize("blocks", [(64, 48), (48, 64)])
def test_total_needs_whole_tiles(blocks: tuple[int, int]) -> None:
    with pytest.raises(InvalidConfig, match="do not divide sequences 1024x1024"):
        flops.total_flop(workload(1024, 1024, 128), *blocks)


def test_tflops() -> None:
    assert flops.tflops(2 * 10**12, 0.5) == 4.0
