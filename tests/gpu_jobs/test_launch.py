"""The tensors of a call, as the core takes them."""

import pytest

from fa_tune.build.native.call import tensors_of
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.families.plan import TensorRole

pytest.importorskip("torch", reason="torch is not installed: no tensors to launch on")

import torch

from fa_tune.operations.forward.torch_side import inputs as make_inputs

PAGED = "b4_h4_kv2_q3_k77_d64_fp16_causal_br_lse_cache5+0+77+1_page16_e4m3"


def placed(name: str, tensor: torch.Tensor) -> tuple[int, int, int, int]:
    """Address and strides of one tensor."""
    found = tensors_of({name: tensor}).of[TensorRole[name.upper()]]
    return found.address or 0, found.batch_stride, found.seq_stride, found.head_stride


def test_views_are_given_by_their_address_and_strides() -> None:
    whole = torch.zeros(2, 7, 5, 8, dtype=torch.float16)
    assert placed("q", whole[:, :, 2:]) == (whole.data_ptr() + 2 * 8 * 2, 7 * 5 * 8, 5 * 8, 8)
    lse = torch.zeros(2, 3, 7)
    assert placed("lse", lse) == (lse.data_ptr(), 0, 0, 0)
    slopes = torch.zeros(3).expand(2, 3)
    assert placed("alibi_slopes", slopes) == (slopes.data_ptr(), 0, 0, 1)


def test_the_stride_of_an_extent_of_1_may_be_anything() -> None:
    odd = torch.zeros(64, dtype=torch.float16).as_strided((1, 8, 1, 8), (3, 8, 5, 1))
    assert placed("k", odd)[1:] == (0, 8, 0)


@pytest.mark.parametrize(
    ("shape", "strides", "offset", "said"),
    [
        ((2, 4, 1, 8), (32, 8, 8, 2), 0, "d_head contiguous"),
        ((2, 4, 1, 8), (40, 9, 8, 1), 0, "multiple of 16 bytes"),
        ((2, 4, 1, 8), (32, 8, 8, 1), 4, "multiple of 16 bytes"),
    ],
)
def test_rows_that_no_copy_can_read_are_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], offset: int, said: str
) -> None:
    tensor = torch.zeros(256, dtype=torch.float16).as_strided(shape, strides, offset)
    with pytest.raises(InvalidConfig, match=f"V must .*{said}"):
        placed("v", tensor)


def test_a_cache_is_given_by_its_lengths_pages_and_scales() -> None:
    w = Workload.from_key(PAGED)
    given = make_inputs(w, seed=1, device="cpu")
    found = tensors_of(given)
    lengths, table, scale, k = (
        found.of[TensorRole[name.upper()]]
        for name in ("cache_seqlens", "page_table", "k_scale", "k")
    )
    assert lengths.address == given["cache_seqlens"].data_ptr()
    assert table.address == given["page_table"].data_ptr()
    assert (found.page_size, table.batch_stride) == (16, given["page_table"].stride(0))
    assert (scale.batch_stride, scale.head_stride) == tuple(given["k_scale"].stride())
    assert (k.seq_stride, k.head_stride) == given["k"].stride()[1:3]
