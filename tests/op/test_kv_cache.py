"""What attention to a cache refuses before the GPU would read beyond a tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no operators")

import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.op import flash_attn_with_kvcache
from fa_tune.op.kv_cache import attend


def half(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float16)


def ints(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int32)


@pytest.mark.parametrize(
    ("cache", "lengths", "table", "said"),
    [
        ((3, 32, 2, 64), (2,), None, r"lengths must be \[3\]"),
        ((3, 32, 2, 64), (3, 1), None, r"lengths must be \[3\]"),
        ((2, 32, 2, 64), (3,), None, "2 sequences, Q has 3"),
        ((3, 32, 2, 32), (3,), None, "d_head 64"),
        ((9, 16, 2, 64), (3,), (2, 4), r"block table must be \[3, pages\]"),
        ((9, 16, 2, 64), (3,), (3,), r"block table must be \[3, pages\]"),
    ],
)
def test_tensors_that_are_too_small_are_refused(
    cache: tuple[int, ...], lengths: tuple[int, ...], table: tuple[int, ...] | None, said: str
) -> None:
    block_table = None if table is None else ints(*table)
    with pytest.raises(InvalidConfig, match=said):
        attend(
            *(half(3, 1, 4, 64), half(*cache), half(*cache), ints(*lengths)),
            block_table=block_table,
        )


def test_tensors_elsewhere_are_refused() -> None:
    cache = half(3, 32, 2, 64)
    with pytest.raises(InvalidConfig, match="must be on cpu, as Q"):
        attend(half(3, 1, 4, 64), cache, cache, ints(3).to("meta"))


@pytest.mark.parametrize("given", ["k", "v"])
def test_one_of_new_keys_and_values_alone_is_refused(given: str) -> None:
    cache = half(3, 32, 2, 64)
    with pytest.raises(InvalidConfig, match="both or neither"):
        flash_attn_with_kvcache(
            half(3, 1, 4, 64), cache, cache, cache_seqlens=ints(3), **{given: half(3, 1, 2, 64)}
        )
