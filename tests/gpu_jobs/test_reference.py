"""The reference against torch's own attention, which is written by others."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fa_tune.core.workload import DType, Workload

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no reference to test")

import torch

from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from tests.log_sum_exp import log_sum_exp
from tests.tensors import attention, qkv

W = Workload(2, 6, 2, 37, 53, 32, DType.FP16)
LARGEST = 4e-6  # difference of two fp32 computations in another order


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """With tensors this small, threads only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def inputs(workload: Workload = W, **changes: Any) -> Tensors:
    return make_inputs(workload, **{"seed": 1, "device": "cpu", **changes})


def theirs(given: Tensors, workload: Workload, diagonal: int = 0) -> torch.Tensor:
    """torch's math back end in fp64; [batch, seq, heads, d_head]."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = (t.transpose(1, 2).double() for t in (given["q"], given["k"], given["v"]))
    mask = None
    if workload.causal:
        ones = torch.ones(workload.seq_len_q, workload.seq_len_kv, dtype=torch.bool)
        mask = ones.tril(diagonal)
    with sdpa_kernel(SDPBackend.MATH):
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return out.transpose(1, 2)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    assert a.shape == b.shape
    return float((a.double() - b.double()).abs().max())


# Attention --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (6, 2), (5, 1)])
def test_attention_with_grouped_heads(dtype: DType, heads: int, kv_heads: int) -> None:
    w = dataclasses.replace(W, dtype=dtype, heads=heads, kv_heads=kv_heads)
    given = inputs(w, mean=0.25)
    mine = attention(given, w, dtype=torch.float32)
    assert mine.dtype == torch.float32
    assert difference(mine, theirs(given, w)) < LARGEST


@pytest.mark.parametrize("d_head_v", [16, 48])
def test_attention_with_values_of_another_head_dimension(d_head_v: int) -> None:
    w = dataclasses.replace(W, heads=6, kv_heads=2, d_head_v=d_head_v)
    given = inputs(w, mean=0.25)
    assert given["v"].shape[-1] == d_head_v
    mine = attention(given, w, dtype=torch.float32)
    assert mine.shape[-1] == d_head_v
    assert difference(mine, theirs(given, w)) < LARGEST


@pytest.mark.parametrize(
    ("q", "kv", "diagonal"), [(40, 40, 0), (37, 53, 0), (37, 53, 16), (53, 37, 0)]
)
def test_causal_attention_aligned_top_left_or_elsewhere(q: int, kv: int, diagonal: int) -> None:
    w = dataclasses.replace(W, seq_len_q=q, seq_len_kv=kv, causal=True)
    given = inputs(w)
    mine = attention(given, w, dtype=torch.float32, diagonal=diagonal)
    assert difference(mine, theirs(given, w, diagonal)) < LARGEST


def test_a_row_that_sees_nothing_gives_zero() -> None:
    """Aligned bottom-right, the first 16 of 53 queries come before the first of 37 keys."""
    w = dataclasses.replace(W, seq_len_q=53, seq_len_kv=37, causal=True)
    given = inputs(w)
    mine = attention(given, w, dtype=torch.float32, diagonal=37 - 53)
    assert not mine.isnan().any()
    assert (mine[:, :16] == 0).all()
    assert difference(mine[:, 16:], theirs(given, w, 37 - 53)[:, 16:]) < LARGEST


def test_the_first_causal_query_sees_the_first_key_alone() -> None:
    w = dataclasses.replace(W, causal=True, kv_heads=W.heads)
    given = inputs(w)
    mine = attention(given, w, dtype=torch.float32)
    assert torch.equal(mine[:, 0], given["v"][:, 0].float())


@pytest.mark.parametrize("dtype", list(DType))
def test_in_its_own_precision_it_errs_as_that_precision_does(dtype: DType) -> None:
    w = dataclasses.replace(W, dtype=dtype)
    given = inputs(w)
    exact = attention(given, w, dtype=torch.float32)
    same = attention(given, w)
    error = difference(same, exact)
    epsilon = float(torch.finfo(dtype.to_torch_dtype()).eps)
    assert epsilon / 16 < error < 16 * epsilon


def test_attention_by_hand() -> None:
    """Two keys with scores 0 and ln 3 weigh 1/4 and 3/4."""
    w = Workload(1, 1, 1, 1, 2, 4, DType.FP16)
    q = torch.tensor([2.0, 0, 0, 0]).view(1, 1, 1, 4)
    k = torch.tensor([[0.0, 0, 0, 0], [math.log(3), 0, 0, 0]]).view(1, 2, 1, 4)
    v = torch.tensor([[4.0, 0, 8, 1], [0.0, 4, 8, 1]]).view(1, 2, 1, 4)
    given = qkv(q, k, v)
    out = attention(given, w, dtype=torch.float32)
    assert out.flatten().tolist() == pytest.approx([1, 3, 8, 1])
    lse = log_sum_exp(given, w)
    assert lse.flatten().tolist() == pytest.approx([math.log(4)])


@pytest.mark.parametrize(("q", "kv"), [(37, 53), (53, 37)])
def test_the_workload_says_alignment_and_scale(q: int, kv: int) -> None:
    w = dataclasses.replace(W, seq_len_q=q, seq_len_kv=kv, causal=True, bottom_right=True)
    given = inputs(w)
    mine = attention(given, w, dtype=torch.float64)
    assert mine.dtype == torch.float64
    told = dataclasses.replace(w, bottom_right=False)
    assert torch.equal(mine, attention(given, told, dtype=torch.float64, diagonal=kv - q))
    seen = slice(max(0, q - kv), None)
    assert difference(mine[:, seen], theirs(given, w, kv - q)[:, seen]) < 1e-12
    # Twice the scale is the scale of inputs twice as large.
    doubled = dataclasses.replace(w, softmax_scale=2 * w.scale)
    larger = {**given, "q": 2 * given["q"]}
    for function in (attention, log_sum_exp):
        assert torch.allclose(function(given, doubled), function(larger, w), atol=2e-3)
    assert difference(attention(given, doubled), mine) > 0.1


# Log-sum-exp ------------------------------------------------------------------------------------


@pytest.mark.parametrize("diagonal", [None, 0, 16, -20])
def test_the_log_sum_exp_is_what_makes_weights_of_scores(diagonal: int | None) -> None:
    """exp(score - lse) sums to 1 in every row that sees a key; other rows have -inf."""
    w = dataclasses.replace(W, causal=diagonal is not None)
    given = inputs(w, mean=0.25)
    lse = log_sum_exp(given, w, diagonal=diagonal or 0)
    assert lse.shape == (w.batch, w.heads, w.seq_len_q)
    assert lse.dtype == torch.float32
    for b, h in ((0, 0), (1, 3), (1, 5)):
        q, k = given["q"][b, :, h].double(), given["k"][b, :, h * w.kv_heads // w.heads].double()
        weights = (q @ k.T / math.sqrt(w.d_head)).exp()
        if diagonal is not None:
            weights = weights.tril(diagonal)
        assert difference(lse[b, h].exp(), weights.sum(-1)) < 1e-3
        assert torch.equal(lse[b, h] == -math.inf, weights.sum(-1) == 0)


# Tensors -----------------------------------------------------------------------------------------


def test_inputs_have_their_shapes_and_dtype() -> None:
    given = inputs()
    assert given["q"].shape == (2, 37, 6, 32)
    assert given["k"].shape == given["v"].shape == (2, 53, 2, 32)
    assert {t.dtype for t in (given["q"], given["k"], given["v"])} == {torch.float16}
    assert all(t.is_contiguous() for t in (given["q"], given["k"], given["v"]))


def test_one_seed_gives_the_same_numbers_in_both_dtypes() -> None:
    other = inputs(dataclasses.replace(W, dtype=DType.BF16))
    mine, again = inputs(), inputs()
    assert torch.equal(mine["q"], again["q"])
    assert difference(mine["q"], other["q"]) < 0.05
    assert not torch.equal(inputs(seed=2)["q"], mine["q"])
    assert not torch.equal(mine["k"], mine["v"])


def test_inputs_are_normal_around_their_mean() -> None:
    w = Workload(2, 8, 8, 512, 512, 64, DType.FP16)
    q = inputs(w, mean=0.25)["q"].double()
    assert float(q.mean()) == pytest.approx(0.25, abs=0.01)
    assert float(q.std()) == pytest.approx(1, abs=0.01)


def test_extra_heads_make_every_stride_unnatural_but_the_last() -> None:
    for tensor in inputs(extra_heads=3).values():
        batch, seq, heads, d = tensor.stride()
        assert d == 1
        assert heads == W.d_head
        assert seq == (tensor.shape[2] + 3) * W.d_head
        assert batch == tensor.shape[1] * seq
        assert tensor.storage_offset() == 3 * W.d_head


FEATURES = (
    {"window_left": 7, "causal": True},
    {"window_left": 3, "window_right": 5, "bottom_right": True},
    {"window_right": 4},
    {"sink": True, "causal": True, "bottom_right": True},
    {"softcap": 2.0},
    {"alibi": True, "bottom_right": True},
    {"alibi": True, "causal": True, "softcap": 1.5, "sink": True, "window_left": 9},
)


@pytest.mark.parametrize("changes", FEATURES)
def test_windows_sinks_caps_and_slopes_row_by_row(changes: dict[str, Any]) -> None:
    """Against sums over the keys that each query sees, one score at a time."""
    w = dataclasses.replace(W, seq_len_q=13, seq_len_kv=11, **changes)
    given = inputs(w)
    out = attention(given, w, dtype=torch.float64)
    lse = log_sum_exp(given, w)
    judged = expected(w, given)
    group = w.heads // w.kv_heads
    for b, i, h in itertools.product(range(w.batch), range(w.seq_len_q), range(w.heads)):
        place = i + w.diagonal
        total, value = 0.0, torch.zeros(w.d_head, dtype=torch.float64)
        if given.get("sink") is not None:
            total += math.exp(given.get("sink")[h])
        for j in range(w.seq_len_kv):
            right = 0 if w.causal else w.window_right
            if (right is not None and j > place + right) or (
                w.window_left is not None and j < place - w.window_left
            ):
                continue
            score = (
                float(given["q"][b, i, h].double() @ given["k"][b, j, h // group].double())
                * w.scale
            )
            if w.softcap is not None:
                score = w.softcap * math.tanh(score / w.softcap)
            if given.get("alibi_slopes") is not None:
                score -= float(given.get("alibi_slopes")[b, h]) * abs(place - j)
            total += math.exp(score)
            value += math.exp(score) * given["v"][b, j, h // group].double()
        by_hand = value / total if total else value
        assert difference(out[b, i, h], by_hand) < 1e-6
        assert difference(judged["o"].exact[b, i, h], by_hand) < 1e-6
        log = math.log(total) if total else -math.inf
        assert float(lse[b, h, i]) == pytest.approx(log, abs=1e-5)
        assert float(judged["lse"].exact[b, h, i]) == pytest.approx(log, abs=1e-6)
