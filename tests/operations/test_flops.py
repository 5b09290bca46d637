from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import MASKS, DType, Workload
from fa_tune.operations import flops
from fa_tune.operations.forward import spec as forward

sizes = st.integers(1, 40)


masks = st.sampled_from(MASKS)


def workload(seq_len_q: int, seq_len_kv: int, d_head: int, mask: str = "full") -> Workload:
    key = f"b1_h1_kv1_q{seq_len_q}_k{seq_len_kv}_d{d_head}_fp16_{mask}"
    return Workload.from_key(key)


def seen(seq_len_q: int, seq_len_kv: int, mask: str) -> set[tuple[int, int]]:
    """Which query sees which key, by the definition of each mask."""
    rule = {
        "full": lambda i, j: True,
        "causal": lambda i, j: j <= i,
        "causal_br": lambda i, j: seq_len_kv - 1 - j >= seq_len_q - 1 - i,
    }[mask]
    return {(i, j) for i in range(seq_len_q) for j in range(seq_len_kv) if rule(i, j)}


@given(sizes, sizes, masks)
def test_unmasked_pairs_are_those_of_the_mask(seq_len_q: int, seq_len_kv: int, mask: str) -> None:
    found = flops.unmasked_pairs(workload(seq_len_q, seq_len_kv, 1, mask))
    assert found == len(seen(seq_len_q, seq_len_kv, mask))


@given(sizes, sizes, masks, st.integers(1, 9), st.integers(1, 9))
def test_tiles_that_are_visited_are_those_in_which_someone_sees_something(
    seq_len_q: int, seq_len_kv: int, mask: str, B_r: int, B_c: int
) -> None:
    tiles = {(i // B_r, j // B_c) for i, j in seen(seq_len_q, seq_len_kv, mask)}
    found = flops.visited_tiles(workload(seq_len_q, seq_len_kv, 1, mask), B_r, B_c)
    assert found == len(tiles)


def test_two_by_two_by_hand() -> None:
    # Q, K, V are 2x2.  Each of the 4 scores takes 2 multiplications and 2 additions (16), each
    # of the 4 outputs as many (16); the softmax six per score (24).
    w = workload(2, 2, 2)
    assert flops.matmul_flop(w) == 16 + 16
    assert flops.attn_flop(w) == 16 + 16 + 24
    # One 2x2 tile.  Softmax per row: 4 for each of 2 scores, 2 to rescale the outputs, 4 for the
    # statistics = 14.  Epilogue: 4 divisions.
    assert forward.tile_softmax_flop(2, 2, 2) == 2 * 14
    assert forward.kv_tile_flop(2, 2, 2) == 32 + 28
    assert flops.total_flop(w, 2, 2) == 32 + 28 + 4
    # Four 1x1 tiles: 8 for the products and 4 + 2 + 4 for the softmax each.
    assert flops.total_flop(w, 1, 1) == 4 * (8 + 10) + 4


def test_two_by_two_causal_by_hand() -> None:
    # Three of the four pairs attend: 3 scores and 3 weighted values of 4 operations each.
    w = workload(2, 2, 2, "causal")
    assert flops.matmul_flop(w) == 12 + 12
    assert flops.attn_flop(w) == 12 + 12 + 18
    # In 1x1 tiles those three are computed; the one 2x2 tile is computed whole.
    assert flops.total_flop(w, 1, 1) == 3 * (8 + 10) + 4
    assert flops.total_flop(w, 2, 2) == 32 + 28 + 4
    # With a third key in front, seen by both, the last query sees all three.
    w = workload(2, 3, 2, "causal_br")
    assert flops.matmul_flop(w) == 5 * (4 + 4)
    assert flops.attn_flop(w) == 5 * (4 + 4 + 6)


def test_causal_is_nearly_half() -> None:
    full, causal = workload(4096, 4096, 128), workload(4096, 4096, 128, "causal")
    assert flops.matmul_flop(causal) / flops.matmul_flop(full) == 0.5 * 4097 / 4096
    assert 0.5 < flops.total_flop(causal, 128, 64) / flops.total_flop(full, 128, 64) < 0.52


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


@given(masks, st.integers(1, 5), st.integers(1, 5))
def test_counts_scale_with_batch_and_heads(mask: str, batch: int, heads: int) -> None:
    one = workload(12, 8, 4, mask)
    many = dataclasses.replace(one, batch=batch, heads=heads)
    assert flops.total_flop(many, 4, 4) == batch * heads * flops.total_flop(one, 4, 4)
    assert flops.matmul_flop(many) == batch * heads * flops.matmul_flop(one)
    assert flops.attn_flop(many) == batch * heads * flops.attn_flop(one)


@pytest.mark.parametrize("blocks", [(64, 48), (48, 64)])
def test_total_needs_whole_tiles(blocks: tuple[int, int]) -> None:
    with pytest.raises(InvalidConfig, match="do not divide sequences 1024x1024"):
        flops.total_flop(workload(1024, 1024, 128), *blocks)


def test_tflops() -> None:
    assert flops.tflops(2 * 10**12, 0.5) == 4.0


def test_values_of_another_head_dimension_by_hand() -> None:
    # Q and K are 2x3, V is 2x5: each of the 4 scores takes 3 multiplications and 3 additions, each
    # of the 10 outputs two of each; the softmax six per score.
    w = dataclasses.replace(workload(2, 2, 3), d_head_v=5)
    assert flops.matmul_flop(w) == 4 * 6 + 10 * 4
    assert flops.attn_flop(w) == 4 * 6 + 10 * 4 + 24
    # One tile: 4 for each score of a row, 5 rescaled outputs and 4; a division for each output.
    assert flops.total_flop(w, 2, 2) == 4 * 6 + 10 * 4 + 2 * (8 + 5 + 4) + 10


sides = st.none() | st.integers(0, 50)


@given(sizes, sizes, masks, st.booleans(), sides, sides, st.integers(1, 9), st.integers(1, 9))
def test_a_windows_pairs_and_tiles_are_those_of_its_definition(
    q: int,
    kv: int,
    mask: str,
    aligned: bool,
    left: int | None,
    right: int | None,
    B_r: int,
    B_c: int,
) -> None:
    causal = mask != "full"
    w = Workload(
        *(1, 1, 1, q, kv, 64, DType.FP16),
        causal=causal,
        bottom_right=mask == "causal_br"
        or (not causal and aligned and (left, right) != (None, None)),
        window_left=left,
        window_right=right,
    )
    bottom_right = mask == "causal_br" or (not causal and aligned)
    diagonal = kv - q if bottom_right else 0
    pairs = {
        (i, j)
        for i in range(q)
        for j in range(kv)
        if (left is None or j >= i + diagonal - left)
        and (right is None or j <= i + diagonal + right)
        and (not causal or j <= i + diagonal)
    }
    assert flops.unmasked_pairs(w) == len(pairs)
    tiles = {(i // B_r, j // B_c) for i, j in pairs}
    # A tile within the range of its rows' keys may hold a corner that nobody sees.
    assert flops.visited_tiles(w, B_r, B_c) >= len(tiles)
    assert flops.visited_tiles(w, 1, 1) == len(pairs)
    assert Workload.from_key(w.key) == w


def test_of_a_cache_the_keys_that_there_are_count() -> None:
    cached = Workload.from_key("b3_h8_kv2_q1_k77_d64_bf16_full_cache5+0+77_page16")
    assert flops.unmasked_pairs(cached) == 5 + 77
    assert flops.matmul_flop(cached) == 4 * 8 * 64 * (5 + 77)
    keys_and_values = 2 * (5 + 77) * 2 * 64 * 2
    queries_and_result = 2 * 3 * 8 * 64 * 2
    lengths_and_table = 4 * (3 + 3 * 5)
    assert flops.moved_bytes(cached) == keys_and_values + queries_and_result + lengths_and_table
