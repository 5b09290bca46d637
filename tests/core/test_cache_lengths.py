"""Workloads whose lengths or pages the device alone knows."""

from typing import Any

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload


def cached(**fields: Any) -> Workload:
    given: dict[str, Any] = {"batch": 4, "seq_len_q": 2, "seq_len_kv": 100, **fields}
    return Workload(heads=8, kv_heads=2, d_head=64, dtype=DType.BF16, **given)


def test_a_list_says_batch_and_keys() -> None:
    found = cached(cache_lengths="5+0+77")
    assert (found.batch, found.seq_len_kv) == (3, 77)
    assert found.members == ((2, 5), (2, 0), (2, 77))


def test_drawn_lengths_are_as_long_as_the_cache_at_most() -> None:
    found = cached(cache_lengths="lognormal-1-3", batch=64, seq_len_kv=5000)
    keys = [kv for _, kv in found.members]
    assert (len(keys), max(keys), found.batch, found.seq_len_kv) == (64, 5000, 64, 5000)
    assert min(keys) < 1000


def test_pages_alone_are_of_equal_sequences() -> None:
    assert cached(page_size=16) == cached(page_size=16, cache_lengths="equal")
    assert cached(page_size=16).members == ((2, 100),) * 4


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_lengths": "equal"},
        {"cache_lengths": "uniform-3", "page_size": 256, "causal": True, "lse": True},
        {"cache_lengths": "5+0+77", "softmax_scale": 0.5},
    ],
)
def test_a_key_says_all(fields: dict[str, Any]) -> None:
    assert Workload.from_key(cached(**fields).key) == cached(**fields)


def test_a_mask_is_aligned_bottom_right_in_each_sequence() -> None:
    assert cached(cache_lengths="equal", causal=True).mask == "causal_br"
    assert cached(cache_lengths="equal", causal=True).dense(1, 2, 30).diagonal == 28


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"cache_lengths": "5+7", "lengths": "5+7"}, "a packed batch has no cache"),
        ({"cache_lengths": "5x7"}, "are of keys"),
        ({"cache_lengths": "long"}, "not lengths"),
        ({"page_size": -16}, "multiple of 16"),
        ({"page_size": 17}, "multiple of 16"),
    ],
)
def test_what_no_cache_can_be_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidConfig, match=why):
        cached(**fields)
