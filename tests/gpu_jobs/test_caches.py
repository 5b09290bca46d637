"""Caches hold what sequences own, NaN beside it, and are judged sequence by sequence."""

import pytest

from fa_tune.core.workload import Workload

pytest.importorskip("torch", reason="torch is not installed: no tensors to lay out")

import torch

from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.forward.torch_side.caches import sequence
from tests.tensors import attention, qkv

IN_PIECES = "b5_h8_kv2_q2_k200_d64_bf16_full_cachelognormal-1-3"
PAGED = f"{IN_PIECES}_page48"
CAUSAL = "b4_h4_kv1_q3_k77_d64_fp16_causal_br_lse_cache5+0+77+1_page16"
KEYS = (IN_PIECES, PAGED, CAUSAL)


def inputs(key: str, *, extra_heads: int = 0) -> Tensors:
    return make_inputs(Workload.from_key(key), seed=1, device="cpu", extra_heads=extra_heads)


@pytest.mark.parametrize("extra_heads", [0, 1])
@pytest.mark.parametrize("key", KEYS)
def test_every_sequence_has_its_keys_and_nothing_else_is_finite(key: str, extra_heads: int) -> None:
    w, found = Workload.from_key(key), inputs(key, extra_heads=extra_heads)
    for tensor in (found["k"], found["v"]):
        table = found.get("page_table")
        owned = [sequence(tensor, table, b, n) for b, (_, n) in enumerate(w.members)]
        assert [one.shape[1] for one in owned] == [n for _, n in w.members]
        assert not any(one.isnan().any() for one in owned)
        finite = tensor.shape[2] * tensor.shape[3] * sum(n for _, n in w.members)
        assert int(tensor.isfinite().sum()) == finite


def test_pages_hold_what_pieces_do() -> None:
    w, whole, paged = Workload.from_key(PAGED), inputs(IN_PIECES), inputs(PAGED)
    for number, (_, n) in enumerate(w.members):
        piece = sequence(whole["k"], None, number, n)
        assert torch.equal(piece, sequence(paged["k"], paged.get("page_table"), number, n))


@pytest.mark.parametrize("key", KEYS)
def test_what_must_come_out_is_what_each_sequence_alone_gives(key: str) -> None:
    w, given = Workload.from_key(key), inputs(key)
    found = expected(w, given)["o"].exact
    for number, (n_q, n_kv) in enumerate(w.members):
        if not n_kv:
            assert not found[number].any()
            continue
        one = slice(number, number + 1)
        k, v = (
            sequence(t, given.get("page_table"), number, n_kv) for t in (given["k"], given["v"])
        )
        alone = attention(qkv(given["q"][one], k, v), w.dense(1, n_q, n_kv), dtype=torch.float64)
        assert torch.allclose(found[one], alone, atol=1e-12)
