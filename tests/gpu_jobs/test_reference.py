"""The reference against torch's own attention, which is written by others."""

import dataclasses
import itertools
import math
from typing import Any

import pytest

from fa_tune.core.workload import DType, Workload

pytest.importorskip("torch", reason="torch is not installed: no reference to test")

import torch

from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side import expected
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from tests.tensors import attention

W = Workload(2, 6, 2, 37, 53, 32, DType.FP16)
LARGEST = 4e-6  # difference of two fp32 computations in another order


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


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(("q", "kv", "diagonal"), [(37, 53, None), (37, 53, 16), (53, 37, 0)])
def test_attention_is_torchs(dtype: DType, q: int, kv: int, diagonal: int | None) -> None:
    w = dataclasses.replace(W, dtype=dtype, seq_len_q=q, seq_len_kv=kv, causal=diagonal is not None)
    given = inputs(w, mean=0.25)
    mine = attention(given, w, dtype=torch.float32, diagonal=diagonal)
    assert mine.dtype == torch.float32
    assert difference(mine, theirs(given, w, diagonal or 0)) < LARGEST


@pytest.mark.parametrize("dtype", list(DType))
def test_in_its_own_precision_it_errs_as_that_precision_does(dtype: DType) -> None:
    w = dataclasses.replace(W, dtype=dtype)
    given = inputs(w)
    error = difference(attention(given, w), attention(given, w, dtype=torch.float32))
    epsilon = float(torch.finfo(dtype.to_torch_dtype()).eps)
    assert epsilon / 16 < error < 16 * epsilon


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
    {"kv_heads": 6, "softmax_scale": 0.3},
    {"causal": True},
    {"causal": True, "bottom_right": True, "kv_heads": 1},  # the first two queries see no key
    {"causal": True, "bottom_right": True, "seq_len_q": 7},
    {"d_head_v": 16},
    {"d_head_v": 48, "causal": True},
    {"window_left": 7, "causal": True},
    {"window_left": 3, "window_right": 5, "bottom_right": True},
    {"window_right": 4},
    {"sink": True, "causal": True, "bottom_right": True},
    {"softcap": 2.0},
    {"alibi": True, "bottom_right": True},
    {"alibi": True, "causal": True, "softcap": 1.5, "sink": True, "window_left": 9},
)


@pytest.mark.parametrize("changes", FEATURES)
def test_masks_scales_heads_sinks_caps_and_slopes_row_by_row(changes: dict[str, Any]) -> None:
    """The tests' reference and the product's, against sums over the keys that each query sees, one
    score at a time."""
    w = dataclasses.replace(W, **{"seq_len_q": 13, "seq_len_kv": 11, **changes})
    given = inputs(w)
    out = attention(given, w, dtype=torch.float64)
    judged = expected(w, given)
    group, scale = w.heads // w.kv_heads, w.softmax_scale or w.d_head**-0.5
    diagonal = w.seq_len_kv - w.seq_len_q if w.bottom_right else 0
    for b, i, h in itertools.product(range(w.batch), range(w.seq_len_q), range(w.heads)):
        place = i + diagonal
        total, value = 0.0, torch.zeros(w.d_v, dtype=torch.float64)
        if w.sink:
            total += math.exp(given["sink"][h])
        for j in range(w.seq_len_kv):
            right = 0 if w.causal else w.window_right
            if (right is not None and j > place + right) or (
                w.window_left is not None and j < place - w.window_left
            ):
                continue
            q, k = given["q"][b, i, h].double(), given["k"][b, j, h // group].double()
            score = float(q @ k) * scale
            if w.softcap is not None:
                score = w.softcap * math.tanh(score / w.softcap)
            if w.alibi:
                score -= float(given["alibi_slopes"][b, h]) * abs(place - j)
            total += math.exp(score)
            value += math.exp(score) * given["v"][b, j, h // group].double()
        by_hand = value / total if total else value
        assert difference(out[b, i, h], by_hand) < 1e-6
        assert difference(judged["o"].exact[b, i, h], by_hand) < 1e-6
        log = math.log(total) if total else -math.inf
        assert float(judged["lse"].exact[b, h, i]) == pytest.approx(log, abs=1e-6)
