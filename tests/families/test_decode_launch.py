"""What a launch of the decode family is told of a cache and its scales, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fa_tune import families
from fa_tune.build.native.core import tensors_of_args
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode.config import KVType
from fa_tune.families.decode.launch import divisor
from fa_tune.families.launch import CacheArgs, LaunchArgs, TensorArg
from fa_tune.families.plan import TensorRole
from tests.families.contract import DEVICE

_FAMILY = families.get("decode")
_NARROW = replace(_FAMILY.default_config(128, DType.FP16), kv_type=KVType.E4M3)
_E4M3 = Workload(4, 16, 8, 1, 512, 128, DType.FP16, kv_e4m3=True)
_ARGS = LaunchArgs.forward(*(TensorArg(4096 * i, (4096, 512, 64)) for i in range(1, 5)))


def _with_tensors(**tensors: TensorArg) -> LaunchArgs:
    return replace(_ARGS, tensors={**_ARGS.tensors, **tensors})


def _params(args: LaunchArgs) -> np.ndarray:
    (params,) = _FAMILY.launches(_NARROW, _E4M3, args, DEVICE)[0].args
    return params[0]


@pytest.mark.parametrize("given", [("k_scale",), ("v_scale",), ("k_scale", "v_scale")])
def test_scales_are_found_by_their_own_strides(given: tuple[str, ...]) -> None:
    args = _with_tensors(**{name: TensorArg(64, (8, 1, 0)) for name in given})
    params, tensors = _params(args), tensors_of_args(args)
    assert (params["scale_batch_stride"], params["scale_head_stride"]) == (8, 1)
    for name in given:
        scale = tensors.of[TensorRole[name.upper()]]
        assert (scale.batch_stride, scale.head_stride) == (8, 1)


def test_scales_with_different_strides_are_refused() -> None:
    args = _with_tensors(k_scale=TensorArg(64, (8, 1, 0)), v_scale=TensorArg(128))
    for told in (_params, tensors_of_args):
        with pytest.raises(InvalidConfig, match="same strides"):
            told(args)


@pytest.mark.parametrize("name", ["k", "v"])
def test_pages_between_two_chunks_are_refused_for_a_single_sequence(name: str) -> None:
    one, pages = replace(_E4M3, batch=1), CacheArgs(pages=64, page_size=16, page_stride=32)
    odd = {name: TensorArg(4096, (1028, 64, 64))}
    args = _with_tensors(**odd)
    assert _FAMILY.launches(_NARROW, one, args, DEVICE)  # nothing uses the stride
    with pytest.raises(InvalidConfig, match="multiple of 16 bytes"):
        _FAMILY.launches(_NARROW, one, replace(args, cache=pages), DEVICE)


@given(n=st.integers(0, 2**31 - 1), number=st.integers(1, 2**31 - 1))
@example(n=2**31 - 1, number=1)
@example(n=2**31 - 1, number=2**31 - 1)
@example(n=2**31 - 2, number=2**31 - 1)
@example(n=2**30 - 1, number=2**30)
@example(n=2**31 - 1, number=2**16 + 1)
def test_a_divisor_gives_every_quotient(n: int, number: int) -> None:
    multiplier, shift = divisor(number)
    assert multiplier < 2**32
    assert (2 * n * multiplier >> 32) >> shift == n // number


def test_kernels_divide_by_what_the_launch_is_told() -> None:
    pages = CacheArgs(lengths=64, pages=64, page_size=48, page_stride=32)
    args = replace(_ARGS, cache=pages)
    params = _params(args)
    for name in ("heads_per_kv", "row_tiles", "pitch", "share", "page_size"):
        assert tuple(params["by"][name]) == divisor(int(params[name])), name
    tiles = int(params["kv_heads"]) * int(params["row_tiles"])
    assert tuple(params["by"]["tiles"]) == divisor(tiles)
    assert tuple(params["by"]["line"]) == divisor(tiles * int(params["pitch"]))
    assert tuple(_params(_ARGS)["by"]["page_size"]) == (0, 0)
