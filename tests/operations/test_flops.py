import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.operations import flops
from fa_tune.operations.forward import spec as forward


def workload(seq_len_q: int, seq_len_kv: int, d_head: int, mask: str = "full") -> Workload:
    key = f"b1_h1_kv1_q{seq_len_q}_k{seq_len_kv}_d{d_head}_fp16_{mask}"
    return Workload.from_key(key)


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


@pytest.mark.parametrize("blocks", [(64, 48), (48, 64)])
def test_total_needs_whole_tiles(blocks: tuple[int, int]) -> None:
    with pytest.raises(InvalidConfig, match="do not divide sequences 1024x1024"):
        flops.total_flop(workload(1024, 1024, 128), *blocks)


def test_tflops() -> None:
    assert flops.tflops(2 * 10**12, 0.5) == 4.0
