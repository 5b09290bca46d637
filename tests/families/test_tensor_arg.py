"""What a launch takes of a tensor, and which tensors no kernel can read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.families.launch import TensorArg

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: there are no tensors")

import torch

WHOLE = torch.zeros(2, 7, 3, 5, 64, dtype=torch.float16)


def test_packed_qkv_is_three_views() -> None:
    q, k, v = (TensorArg.of(WHOLE[:, :, i]) for i in range(3))
    assert q.strides == k.strides == v.strides == (7 * 3 * 5 * 64, 3 * 5 * 64, 64)
    assert k.address - q.address == v.address - k.address == 5 * 64 * 2


def test_any_order_of_the_outer_dimensions_will_do() -> None:
    tensor = torch.zeros(2, 5, 7, 64, dtype=torch.bfloat16).transpose(1, 2)
    assert TensorArg.of(tensor).strides == (5 * 7 * 64, 64, 7 * 64)
    spread = torch.zeros(7, 64, dtype=torch.float16).expand(3, 4, 7, 64).transpose(1, 2)
    assert TensorArg.of(spread).strides == (0, 64, 0)


def test_the_stride_of_one_thing_alone_does_not_matter() -> None:
    odd = torch.zeros(64, dtype=torch.float16).as_strided((1, 1, 1, 64), (3, 5, 7, 1))
    assert TensorArg.of(odd).strides == (0, 0, 0)


@pytest.mark.parametrize(
    ("tensor", "complaint"),
    [
        (WHOLE[:, :, 0].transpose(2, 3), "K must be .* with d_head contiguous"),
        (WHOLE[:, :, 0, 0], "K must be .batch, seq, heads, d_head."),
        (WHOLE[:, :, 0, :, ::2], "with d_head contiguous"),
        (WHOLE[:, :, 0, :, 4:36], "K must have every row at a multiple of 16 bytes"),
        (
            torch.zeros(2, 7, 5, 36, dtype=torch.float16)[..., :32],
            r"has strides \(1260, 180, 36\) of 2-byte elements",
        ),
    ],
)
def test_what_16_byte_copies_cannot_read_is_refused(tensor: torch.Tensor, complaint: str) -> None:
    with pytest.raises(InvalidConfig, match=complaint) as caught:
        TensorArg.of(tensor, "K")
    assert "\n" not in str(caught.value)
