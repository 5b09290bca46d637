"""FlashAttention 2's functions on the CPU: by matrix products, and by ours where they can."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.bias import causal_lower_right

from fa_tune.core.errors import InvalidConfig
from fa_tune.op import flash_attn, flash_fallback, flash_kv_cache
from fa_tune.op.flash_attn import flash_attn_func, flash_attn_varlen_func
from fa_tune.op.flash_fallback import Options, suits_flash2
from fa_tune.op.flash_kv_cache import flash_attn_with_kvcache
from fa_tune.op.traits import Traits
from tests.op import twins
from tests.op.twins import by_torch, draw

sdpa = torch.nn.functional.scaled_dot_product_attention


pytestmark = pytest.mark.filterwarnings("ignore")


def test_rows_without_keys_are_zero() -> None:
    q, k = draw(1, 6, 2, 16).requires_grad_(), draw(1, 4, 2, 16)
    out, lse, _ = flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    assert (out[:, :2] == 0).all()
    assert lse[..., :2].isneginf().all()
    expected = by_torch(q[:, 2:], k, k, attn_mask=causal_lower_right(4, 4))
    assert torch.allclose(out[:, 2:], expected, atol=1e-5)
    out.sum().backward()
    assert q.grad is not None
    assert q.grad.isfinite().all()
    assert (q.grad[:, :2] == 0).all()
    q, k = draw(1, 6, 2, 16), draw(1, 8, 2, 16)
    assert not torch.allclose(flash_attn_func(q, k, k, dropout_p=0.5), by_torch(q, k, k), atol=1e-3)


@pytest.mark.parametrize("sequences", [[(0, 5)], [(2, 6)], [(0, 3), (3, 7)]])
def test_rows_behind_the_packed_sequences_are_nobodys(sequences: list[tuple[int, int]]) -> None:
    """Buffers that are longer than what they hold, whatever the longest length is said to be."""
    bounds = torch.tensor([sequences[0][0], *(end for _, end in sequences)], dtype=torch.int32)
    q, k, v = draw(9, 4, 16), draw(9, 2, 16), draw(9, 2, 16)
    for tensor in (k, v):
        tensor[: sequences[0][0]] = tensor[sequences[-1][1] :] = torch.nan
    out, lse, _ = flash_attn_varlen_func(
        q, k, v, bounds, bounds, 9, 9, causal=True, return_attn_probs=True
    )
    assert (out.shape, lse.shape) == (q.shape, (4, 9))
    for begin, end in sequences:
        rows = slice(begin, end)
        alone, own, _ = flash_attn_func(
            *(t[None, rows] for t in (q, k, v)), causal=True, return_attn_probs=True
        )
        assert torch.allclose(out[rows], alone[0], atol=1e-6)
        assert torch.allclose(lse[:, rows], own[0], atol=1e-6)


@pytest.mark.parametrize(
    ("starts_q", "starts_k", "told"),
    [
        ([0, 3, 10], [0, 4, 9], "cu_seqlens_q .* 9 or less"),
        ([0, 3, 9], [0, 4, 16], "cu_seqlens_k .* 15 or less"),
        ([-1, 3, 9], [0, 4, 9], "cu_seqlens_q"),
        ([0, 5, 3], [0, 4, 9], "cu_seqlens_q"),
        ([0, 3, 9], [0, 4, 12], "sequence of 8 rows, max_seqlen_k is 7"),
        ([0, 3, 9], [0, 4], "2 sequences, cu_seqlens_k of 1"),
        ([], [], "cu_seqlens_q"),
    ],
)
def test_packed_sequences_that_the_tensors_do_not_have_are_refused(
    starts_q: list[int], starts_k: list[int], told: str
) -> None:
    q, k = draw(9, 4, 16), draw(15, 2, 16)
    starts = (torch.tensor(s, dtype=torch.int32) for s in (starts_q, starts_k))
    with pytest.raises(InvalidConfig, match=told):
        flash_attn_varlen_func(q, k, k, *starts, 7, 7)


def test_what_nobody_here_computes_is_refused() -> None:
    q, table = draw(1, 1, 2, 16), torch.zeros(1, 1, dtype=torch.int32)
    starts = torch.tensor([0, 1], dtype=torch.int32)
    with pytest.raises(InvalidConfig, match="a block table"):
        flash_attn_varlen_func(q[0], q[0], q[0], starts, starts, 1, 1, block_table=table)
    for name in ("cache_leftpad", "rotary_cos"):
        with pytest.raises(InvalidConfig, match="fa-tune does not"):
            flash_attn_with_kvcache(q, q, q, **{name: table})
    with pytest.raises(InvalidConfig, match="no place"):
        flash_attn_with_kvcache(q, q, q, q, q)
    q, k = draw(2, 5, 4, 16), draw(2, 5, 2, 16)
    whole = torch.zeros(2, 5, 4, 16, dtype=torch.int32)
    for three in ((whole, whole, whole), (q, k, k[:, :4]), (q, k, k.double()), (q[..., :8], k, k)):
        with pytest.raises(InvalidConfig):
            flash_attn_func(*three)


@pytest.mark.parametrize("packed", [False, True])
def test_a_score_hook_goes_to_ours_or_is_refused(
    monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    """Nothing that stands in for our kernels computes it."""
    hook = twins.hook("s - b * k", lambda score, batch, head, query, key: score - batch * key)
    q, k = draw(2, 3, 4, 16).half(), draw(2, 5, 2, 16).half()
    options: dict[str, Any] = {"causal": True, "score_hook": hook, "return_attn_probs": True}

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        if not packed:
            out, lse, _ = flash_attn_func(q, k, k, **options)
            return out, lse
        ends = (torch.tensor([0, n, 2 * n], dtype=torch.int32) for n in (3, 5))
        three = (t.flatten(0, 1) for t in (q, k, k))
        out, lse, _ = flash_attn_varlen_func(*three, *ends, 3, 5, **options)
        return out.unflatten(0, (2, 3)), lse.unflatten(1, (2, 3)).transpose(0, 1)

    with pytest.raises(InvalidConfig, match="the tensors are on the cpu"):
        run()
    monkeypatch.setattr(flash_attn, "why_not_ours", lambda q, k, v, options: "")
    with twins.registered():
        found = run()
    expected = twins.fwd_lse(q, k, k, *Traits(True, True, score_hook=hook))
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_no_matrix_product(dtype: torch.dtype) -> None:
    q, k, v = (60 * draw(2, 9, heads, 16) for heads in (4, 2, 2))
    lengths = torch.tensor([7, 9], dtype=torch.int32)

    def run() -> list[torch.Tensor]:
        out, lse, _ = flash_attn_func(q, k, v, causal=True, return_attn_probs=True)
        return [out, lse, flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths)]

    expected = run()
    with torch.autocast("cpu", dtype=dtype):
        found = run()
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


def test_autocast_changes_no_type_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As FlashAttention's own functions give what they are given."""
    cast: list[bool] = []

    def ours(q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        cast.append(torch.is_autocast_enabled("cuda"))
        return q

    monkeypatch.setattr(flash_attn, "attention", ours)
    monkeypatch.setattr(flash_attn, "why_not_ours", lambda *_: "")
    q = draw(2, 9, 4, 16).half()
    torch.set_autocast_enabled("cuda", True)
    try:
        flash_attn_func(q, q, q)
        flash_attn_with_kvcache(q, q, q, cache_seqlens=9)
        assert torch.is_autocast_enabled("cuda")
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert cast == [False, False]


def transposed(*shape: int) -> torch.Tensor:
    """With a last dimension that is not contiguous."""
    return draw(*shape[:-2], shape[-1], shape[-2]).half().transpose(-1, -2)


def test_a_last_dimension_in_pieces_is_copied_beside_a_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[torch.Tensor] = []

    def attended(q: torch.Tensor, cache: Any, *_: Any, **__: Any) -> Any:
        given.extend((q, *cache.new))
        return q, None

    monkeypatch.setattr(flash_kv_cache, "attend", attended)
    monkeypatch.setattr(flash_kv_cache, "why_not_ours", lambda *_: "")
    q, k = transposed(2, 3, 4, 16), transposed(2, 3, 2, 16)
    cache, lengths = draw(2, 8, 2, 16).half(), torch.tensor([2, 3], dtype=torch.int32)
    flash_attn_with_kvcache(q, cache, cache, k, k, cache_seqlens=lengths)
    assert len(given) == 3
    assert all(t.stride(-1) == 1 for t in given)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1e-35])
def test_scales_that_no_kernel_takes_are_matrix_products(scale: float) -> None:
    options = Options(causal=True, scale=scale)
    with FakeTensorMode():
        q = torch.empty(2, 128, 4, 64, dtype=torch.float16, device="cuda")
        assert flash_attn.why_not_ours(q, q, q, options)
        assert not flash_attn.why_not_ours(q, q, q, Options(causal=True))
        assert not suits_flash2(q, q, options, 2, (128, 128))
    q, k = draw(2, 5, 4, 16), draw(2, 5, 2, 16)
    seen = torch.ones(5, 5).tril().bool()
    found = flash_attn_func(q, k, k, causal=True, softmax_scale=scale)
    assert torch.allclose(found, by_torch(scale * q, k, k, scale=1.0, attn_mask=seen), atol=1e-5)


@pytest.mark.parametrize(
    ("d_head", "d_v", "dtype", "batch", "takes"),
    [
        (40, 40, torch.float16, 2, True),
        (256, 256, torch.bfloat16, 65535, True),
        (256, 256, torch.bfloat16, 65536, False),
        (44, 44, torch.float16, 2, True),
        (264, 264, torch.float16, 2, False),
        (64, 20, torch.float16, 2, True),
        (64, 264, torch.float16, 2, False),
        (64, 64, torch.float32, 2, False),
    ],
)
def test_flash_attention_2_is_asked_for_what_it_takes(
    d_head: int, d_v: int, dtype: torch.dtype, batch: int, takes: bool
) -> None:
    with FakeTensorMode():
        q, v = (torch.empty(2, 8, 4, d, dtype=dtype, device="cuda") for d in (d_head, d_v))
        assert suits_flash2(q, v, Options(causal=True), batch, (8, 8)) is takes


@pytest.mark.parametrize(("d_head", "d_v"), [(64, 64), (20, 20), (64, 20), (20, 64)])
def test_flash_attention_2_gets_one_head_dimension_of_whole_eights(
    d_head: int, d_v: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **others: Any) -> Any:
        given.update(others, dims={t.shape[-1] for t in (q, k, v)})
        return twins.fwd_lse(q, k, v, True, False, others["scale"])

    monkeypatch.setattr(flash_fallback, "flash2_forward", forward)
    q, k, v = draw(2, 5, 4, d_head), draw(2, 5, 2, d_head), draw(2, 5, 2, d_v)
    out, lse = flash_fallback.by_flash2(q, k, v, Options(causal=True))
    (wide,) = given["dims"]
    assert wide % 8 == 0
    right = twins.fwd_lse(q, k, v, True)
    assert out.shape == right[0].shape
    assert torch.allclose(out, right[0], atol=1e-5)
    assert torch.allclose(lse, right[1], atol=1e-5)


def test_meta_tensors_get_shapes() -> None:
    with torch.device("meta"):
        q, k = torch.empty(2, 5, 4, 16).half(), torch.empty(2, 7, 2, 16).half()
        starts = torch.zeros(3, dtype=torch.int32)
    out, lse, _ = flash_attn_func(q.requires_grad_(), k, k, return_attn_probs=True)
    assert (out.shape, lse.shape) == (q.shape, (2, 4, 5))
    out.sum().backward()
    assert q.grad is not None
    assert q.grad.shape == q.shape
    three = (t.flatten(0, 1) for t in (q, k, k[..., :8]))
    out, lse, _ = flash_attn_varlen_func(*three, starts, starts, 5, 7, return_attn_probs=True)
    assert (out.shape, lse.shape, out.is_meta) == ((10, 4, 8), (4, 10), True)
    lengths = torch.zeros(2, dtype=torch.int32, device="meta")
    for seqlens in (lengths, 3, None):
        out, lse = flash_attn_with_kvcache(q, k, k, cache_seqlens=seqlens, return_softmax_lse=True)
        assert (out.shape, lse.shape, out.is_meta) == (q.shape, (2, 4, 5), True)


@pytest.mark.parametrize("lengths", [[0, 0, 1, 0, 1], [0, 0, 0, 0, 0]])
def test_fewer_rows_than_sequences(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """By products, and as torch's FlashAttention 2 is asked: one query for the longest makes it
    count on one of each sequence."""
    starts = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    ends = torch.arange(6, dtype=torch.int32) * 3
    q, k = draw(2, 4, 16), draw(15, 2, 16)
    out = flash_attn_varlen_func(q, k, k, starts, ends, 1, 3, causal=True)
    found = iter(range(2))
    for i, length in enumerate(lengths):
        for row in (next(found) for _ in range(length)):
            alone = by_torch(q[None, [row]], *(k[None, 3 * i : 3 * i + 3],) * 2)
            assert torch.allclose(out[row], alone[0, 0], atol=1e-5)
    assert (out[sum(lengths) :] == 0).all()
    given: list[Any] = []
    monkeypatch.setattr(flash_attn, "suits_flash2", lambda *_: True)
    monkeypatch.setattr(
        flash_fallback,
        "flash2_forward",
        lambda *args, **_: given.extend(args) or (q, q[..., 0].T),  # type: ignore[func-returns-value]
    )
    flash_attn_varlen_func(q, k, k, starts, ends, 1, 3, causal=True)
    assert given[5] > 1


@pytest.mark.parametrize("given", [torch.zeros(4), torch.zeros(()), [[1.0]], None])
def test_what_has_no_dimensions_of_a_problem_is_refused_by_all_three(given: Any) -> None:
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    q = draw(2, 5, 4, 16)
    for three in ((given,) * 3, (q, given, given)):
        with pytest.raises(InvalidConfig):
            flash_attn_func(*three)
        with pytest.raises(InvalidConfig):
            flash_attn_varlen_func(*three, starts, starts, 3, 3)
        with pytest.raises(InvalidConfig):
            flash_attn_with_kvcache(*three)


NO_PROBLEMS = {
    "another type of K": ((2, 5, 2, 16), torch.float64),
    "whole numbers in K": ((2, 5, 2, 16), torch.int32),
    "another batch": ((1, 5, 2, 16), torch.float32),
    "another head dimension": ((2, 5, 2, 8), torch.float32),
    "heads that do not divide": ((2, 5, 3, 16), torch.float32),
    "more heads of K": ((2, 5, 8, 16), torch.float32),
    "no head": ((2, 5, 0, 16), torch.float32),
    "three dimensions": ((2, 5, 16), torch.float32),
}


@pytest.mark.parametrize("name", NO_PROBLEMS)
def test_what_makes_no_problem_is_refused_before_products(name: str) -> None:
    shape, dtype = NO_PROBLEMS[name]
    q, k = draw(2, 5, 4, 16), torch.zeros(shape, dtype=dtype)
    with pytest.raises(InvalidConfig):
        flash_attn_func(q, k, k)
    begins = torch.tensor([0, 3, 5], dtype=torch.int32)
    if k.shape[0] == 2:  # packed rows have no batch
        with pytest.raises(InvalidConfig):
            flash_attn_varlen_func(q[0], k[0], k[0], begins, begins, 3, 3)
    if dtype != torch.float64:  # which stands for a cache of another precision
        with pytest.raises(InvalidConfig):
            flash_attn_with_kvcache(q, k, k, cache_seqlens=torch.tensor([3, 2], dtype=torch.int32))


MEANINGLESS: dict[str, dict[str, Any]] = {
    "a share below 0": {"dropout_p": -0.1},
    "a share that is none": {"dropout_p": float("nan")},
    "a soft cap below 0": {"softcap": -30.0},
    "a soft cap that is none": {"softcap": float("nan")},
    "a soft cap without end": {"softcap": float("inf")},
    "a scale that is none": {"softmax_scale": float("nan")},
    "one side of a window": {"window_size": (3,)},
    "a window of no pair": {"window_size": 3},
    "half a key": {"window_size": (1.5, 2)},
    "slopes of other heads": {"alibi_slopes": torch.ones(3)},
    "slopes of all heads in a row": {"alibi_slopes": torch.ones(8)},
    "slopes of another batch": {"alibi_slopes": torch.ones(3, 4)},
    "slopes that are whole numbers": {"alibi_slopes": torch.ones(4, dtype=torch.int32)},
}


@pytest.mark.parametrize("name", MEANINGLESS)
def test_options_that_mean_nothing_are_refused_by_all_three(name: str) -> None:
    """Silence would be attention without them."""
    options = MEANINGLESS[name]
    q, k = draw(2, 5, 4, 16), draw(2, 5, 2, 16)
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    with pytest.raises(InvalidConfig):
        flash_attn_func(q, k, k, **options)
    with pytest.raises(InvalidConfig):
        flash_attn_varlen_func(q[0], k[0], k[0], starts, starts, 3, 3, **options)
    if "dropout_p" not in options:
        with pytest.raises(InvalidConfig):
            flash_attn_with_kvcache(q, k, k, cache_seqlens=3, **options)
