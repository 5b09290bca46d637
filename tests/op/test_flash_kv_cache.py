"""FlashAttention 2's function for caches on the CPU: by matrix products."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.op import flash_kv_cache, kv_cache
from fa_tune.op.flash_attn import flash_attn_func, flash_attn_varlen_func
from fa_tune.op.flash_kv_cache import flash_attn_with_kvcache
from fa_tune.op.kv_cache import E4M3
from tests.op.twins import by_torch, draw

pytestmark = pytest.mark.filterwarnings("ignore")


def test_pages_that_a_window_hides_may_be_gone() -> None:
    q, k, v = draw(2, 2, 4, 16), draw(6, 4, 2, 16), draw(2, 4, 2, 16)
    v = torch.cat((v, draw(4, 4, 2, 16)))
    table = torch.tensor([[1, 2, 3], [4, 3, 2]])
    given = {"cache_seqlens": torch.tensor([12, 9]), "causal": True, "window_size": (3, -1)}
    expected = flash_attn_with_kvcache(q, k, v, block_table=table, **given)
    for tensor in (k, v):
        tensor[[0, 5]] = torch.nan
    for gone in (-1, 0, 5, 99):
        freed = table.clone()
        freed[:, 0] = gone
        found = flash_attn_with_kvcache(q, k, v, block_table=freed, **given)
        assert torch.equal(found, expected)


def test_pages_need_lengths_and_have_no_rows() -> None:
    q, pool, lengths = draw(3, 2, 4, 16), draw(12, 4, 2, 16), torch.tensor([6, 0, 3]).int()
    table = torch.tensor([[7, 2, 5], [1, 99, 99], [4, 11, 99]], dtype=torch.int32)
    for wrong in ({}, {"cache_seqlens": lengths, "cache_batch_idx": lengths}):
        with pytest.raises(InvalidConfig):
            flash_attn_with_kvcache(q, pool, pool, block_table=table, **wrong)
    q, cache = draw(2, 1, 4, 16), draw(2, 10, 2, 16)
    for name in ("k_descale", "v_descale"):
        for lengths in (None, 3, torch.tensor([3, 4], dtype=torch.int32)):
            with pytest.raises(InvalidConfig, match="descale"):
                flash_attn_with_kvcache(
                    q, cache, cache, cache_seqlens=lengths, **{name: torch.tensor(2.0)}
                )
    cache, table = draw(4, 16, 2, 64), torch.arange(4, dtype=torch.int32).view(2, 2)
    before = cache.clone()
    with pytest.raises(InvalidConfig):
        flash_attn_with_kvcache(
            draw(2, 1, 3, 64), cache, cache, NEW, NEW, cache_seqlens=WHOLE, block_table=table
        )
    assert torch.equal(cache, before)


@pytest.mark.parametrize("length", [-1, 10, 11])
def test_new_keys_that_have_no_room_are_refused(length: int) -> None:
    q, cache, new = draw(2, 1, 4, 16), draw(2, 10, 2, 16), draw(2, 1, 2, 16)
    before = cache.clone()
    with pytest.raises(InvalidConfig):
        flash_attn_with_kvcache(q, cache, cache, new, new, cache_seqlens=length)
    assert torch.equal(cache, before)
    for shape in ((1, 1, 2, 16), (2, 1, 1, 16), (2, 1, 2, 8)):
        other = draw(*shape)
        for lengths in (3, torch.tensor([3, 4], dtype=torch.int32)):
            with pytest.raises(InvalidConfig):
                flash_attn_with_kvcache(q, cache, cache, other, other, cache_seqlens=lengths)
    assert torch.equal(cache, before)


@pytest.mark.parametrize("length", [-1, 11])
def test_lengths_that_a_cache_does_not_have_are_refused(length: int) -> None:
    q, cache = draw(2, 1, 4, 16), draw(2, 10, 2, 16)
    with pytest.raises(InvalidConfig):
        flash_attn_with_kvcache(q, cache, cache, cache_seqlens=length)
    for lengths in (torch.tensor([3]), torch.tensor([[3, 4]])):
        with pytest.raises(InvalidConfig):
            flash_attn_with_kvcache(q, cache, cache, cache_seqlens=lengths)


WHOLE = torch.tensor([3, 4], dtype=torch.int32)


@pytest.mark.parametrize(
    "given",
    [
        {"block_table": [[0], [1]], "cache_seqlens": WHOLE},
        {"block_table": torch.zeros(2, 1), "cache_seqlens": WHOLE},
        {"block_table": WHOLE, "cache_seqlens": 3},
        {"cache_batch_idx": WHOLE[:1] - 3, "cache_seqlens": 3},
        {"cache_batch_idx": torch.zeros(3, dtype=torch.int32), "cache_seqlens": 3},
        {"k": [1.0], "v": [1.0], "cache_seqlens": 3},
        {"k": torch.zeros(2, 2, 16), "v": torch.zeros(2, 2, 16), "cache_seqlens": 3},
    ],
)
def test_tables_indices_and_new_keys_that_are_none_are_refused(given: dict[str, Any]) -> None:
    q, cache, new = draw(2, 1, 4, 16), draw(2, 16, 2, 16), draw(2, 1, 2, 16)
    before = cache.clone()
    with pytest.raises(InvalidConfig):
        flash_attn_with_kvcache(q, cache, cache, **{"k": new, "v": new, **given})
    assert torch.equal(cache, before)


@pytest.mark.parametrize(
    "given",
    [
        {"k_descale": 2.0},
        {"v_descale": torch.ones(3)},
        {"k": draw(2, 1, 2, 16), "v": draw(2, 1, 2, 16)},
    ],
)
def test_scales_and_new_keys_that_are_not_of_an_e4m3_cache_are_refused(
    given: dict[str, Any],
) -> None:
    q, cache = draw(2, 1, 4, 16), draw(2, 16, 2, 16).to(E4M3)
    before = cache.float()
    with pytest.raises(InvalidConfig):
        flash_attn_with_kvcache(q, cache, cache, cache_seqlens=WHOLE, **given)
    assert torch.equal(cache.float(), before)


def test_scales_of_an_e4m3_cache_expand_in_products() -> None:
    q, k, v = draw(2, 3, 4, 16), draw(2, 9, 2, 16).to(E4M3), draw(2, 9, 2, 16).to(E4M3)
    of_k, of_v = torch.tensor([0.5, 2.0]), torch.tensor([[3.0], [0.25]])
    found = flash_attn_with_kvcache(q, k, v, k_descale=of_k, v_descale=of_v)
    keys, values = k.float() * of_k[:, None], v.float() * of_v[:, None, None]
    assert torch.allclose(found, by_torch(q, keys, values), atol=1e-5)
    q, cache = draw(2, 1, 4, 16), draw(2, 0, 2, 16)
    none = torch.zeros(2, dtype=torch.int32)
    out, lse = flash_attn_with_kvcache(q, cache, cache, cache_seqlens=none, return_softmax_lse=True)
    assert (out == 0).all()
    assert lse.isneginf().all()


@pytest.mark.parametrize("paged", [False, True])
def test_new_keys_beyond_a_cache_of_unknown_lengths_are_dropped(paged: bool) -> None:
    """On a GPU a place that is not there would end every later call."""
    lengths = torch.tensor([7, 6, 3, 8, 11, -2, -3, -9], dtype=torch.int32)
    n = len(lengths)
    cache, new, q = draw(n, 8, 2, 16), draw(n, 3, 2, 16), draw(n, 1, 4, 16)
    values = cache.clone()
    expected = cache.clone()
    for row, own, first in zip(expected, new, lengths.tolist(), strict=True):
        for place in range(max(0, first), min(8, first + 3)):
            row[place] = own[place - first]
    table = None
    if paged:
        table = torch.arange(2 * n, dtype=torch.int32).view(n, 2)
        cache, values = cache.view(2 * n, 4, 2, 16), values.view(2 * n, 4, 2, 16)
    out = flash_attn_with_kvcache(
        q, cache, values, new, new, cache_seqlens=lengths, block_table=table, causal=True
    )
    assert torch.equal(cache.view(n, 8, 2, 16), expected)
    for i, first in enumerate(lengths.tolist()):
        seen = (expected[[i], : max(0, first + 3)],) * 2
        assert torch.allclose(out[i], flash_attn_func(q[[i]], *seen)[0], atol=1e-5)


def test_a_table_without_pages_is_left_to_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_kv_cache, "why_not_ours", lambda *_: "")
    q, pages = draw(2, 1, 4, 16).half(), draw(3, 16, 2, 16).half()
    none, table = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 0, dtype=torch.int32)
    out = flash_attn_with_kvcache(q, pages, pages, cache_seqlens=none, block_table=table)
    assert (out == 0).all()


@pytest.mark.parametrize("given", [[0, 2, 5], torch.tensor([0.0, 2.0, 5.0]), torch.zeros(1, 3)])
def test_places_that_are_no_whole_numbers_are_refused(given: Any) -> None:
    q, cache = draw(5, 4, 16), draw(3, 10, 4, 16)
    with pytest.raises(InvalidConfig, match="cu_seqlens_q"):
        flash_attn_varlen_func(q, q, q, given, given, 3, 3)
    with pytest.raises(InvalidConfig, match="cache_seqlens"):
        flash_attn_with_kvcache(cache[:, :1], cache, cache, cache_seqlens=given)
    with pytest.raises(InvalidConfig, match="cache_batch_idx"):
        flash_attn_with_kvcache(cache[:, :1], cache, cache, cache_batch_idx=given)


CACHE, NEW = draw(2, 32, 2, 64), draw(2, 1, 2, 64)


@pytest.mark.parametrize(
    "lengths",
    [3, WHOLE, {"cache_seqlens": 3, "cache_batch_idx": WHOLE - 3}],
    ids=["int", "", "rows"],
)
@pytest.mark.parametrize(
    "given",
    [
        {"q": draw(2, 1, 3, 64)},
        {"q": draw(2, 1, 4, 32)},
        {"q": draw(3, 1, 4, 64)},
        {"q": draw(2, 1, 4, 64).to(E4M3)},
        {"k_cache": CACHE.int()},
        {"v_cache": CACHE[:, :3]},
        {"v_cache": CACHE[:, :, :1]},
        {"k_cache": CACHE[:1].expand(2, 32, 2, 64)},
        {"v_cache": CACHE[:, :, :1].expand(2, 32, 2, 64)},
        {"alibi_slopes": torch.ones(4, device="meta")},
        {"cache_batch_idx": torch.zeros(2, dtype=torch.int32, device="meta")},
        {"window_size": (3,)},
    ],
)
def test_what_is_refused_has_written_nothing(given: dict[str, Any], lengths: Any) -> None:
    place = lengths if isinstance(lengths, dict) else {"cache_seqlens": lengths}
    usual = {"q": draw(2, 1, 4, 64), "k_cache": CACHE, "v_cache": CACHE, "k": NEW, "v": NEW}
    before = CACHE.clone()
    with pytest.raises(InvalidConfig) as caught:
        flash_attn_with_kvcache(**(usual | place | given))
    assert "\n" not in str(caught.value)
    assert torch.equal(CACHE, before)


def test_rows_that_kernels_refuse_are_refused_before_the_cache_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flash_kv_cache, "why_not_ours", lambda *_: "")
    any_kernel = SimpleNamespace(kernel_with_cache=lambda *_: None)
    monkeypatch.setattr(kv_cache.state, "operators", lambda: any_kernel)
    cache = torch.zeros(2 * 32 * 2 * 64 + 4).half()[4:].view(2, 32, 2, 64)
    q, new = draw(2, 1, 4, 64).half(), NEW.half()
    with pytest.raises(InvalidConfig):
        flash_attn_with_kvcache(q, cache, cache, new, new, cache_seqlens=3)
    assert not cache.any()


@pytest.mark.parametrize("lengths", [3, torch.tensor([3, 3], dtype=torch.int32)])
@pytest.mark.parametrize("row", [-1, 4])
def test_sequences_that_a_cache_does_not_have_are_refused(row: int, lengths: Any) -> None:
    """Another one's keys were read, and overwritten."""
    cache, new = draw(4, 8, 2, 16), draw(2, 1, 2, 16)
    before = cache.clone()
    rows = torch.tensor([0, row], dtype=torch.int32)
    with pytest.raises(InvalidConfig, match="cache_batch_idx"):
        flash_attn_with_kvcache(
            *(draw(2, 1, 2, 16), cache, cache, new, new),
            cache_seqlens=lengths,
            cache_batch_idx=rows,
        )
    assert torch.equal(cache, before)
