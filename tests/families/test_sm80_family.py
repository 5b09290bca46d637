"""The sm80 family keeps the contract, and says in Python what its kernel asserts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from fa_tune import families
from fa_tune.arch import limits
from fa_tune.errors import InvalidConfig
from fa_tune.families.sm80 import CONSTRAINTS, FlashForwardKernelConfig, params_dtype
from fa_tune.model import DType, Workload
from fa_tune.paths import kernels_dir
from tests.families.contract import DEVICE, KernelFamilyContract

_DEFAULT: FlashForwardKernelConfig = families.get("sm80").default_config(128, DType.FP16)


class TestSm80Contract(KernelFamilyContract):
    name = "sm80"
    compute_capability = (9, 0)
    bad_configs = (
        replace(_DEFAULT, n_warps=0),
        replace(_DEFAULT, n_warps=64),
        replace(_DEFAULT, d_head=100),
        replace(_DEFAULT, d_head=288),
        replace(_DEFAULT, B_r=64, n_warps=8),
        replace(_DEFAULT, B_c=40),
        replace(_DEFAULT, d_head=96, B_c=32, B_r=128, n_warps=8),
        replace(_DEFAULT, async_copy=False),
        replace(_DEFAULT, Q_mma_load_K_tiles=3),
        replace(_DEFAULT, K_mma_load_K_tiles=-1),
        replace(_DEFAULT, V_mma_load_K_tiles=3),
        replace(_DEFAULT, B_r=512, B_c=256, n_warps=16),
    )

    @pytest.mark.parametrize("arch", [(8, 0), (8, 6), (9, 0)])
    @pytest.mark.parametrize("d_head", [64, 96, 128, 192, 256])
    def test_there_is_a_default_for_every_d_head_and_size_of_shared_memory(
        self, d_head: int, arch: tuple[int, int]
    ) -> None:
        for dtype in DType:
            config = families.get("sm80").default_config(d_head, dtype)
            assert (config.dtype, config.d_head) == (dtype, d_head)
            assert families.get("sm80").constraints(config, limits(arch)) is None

    def test_each_constraint_is_tried(self) -> None:
        named = {
            next((name for name, _, holds in CONSTRAINTS if not holds(config)), "smem_fits")
            for config in self.bad_configs
        }
        assert named == {name for name, _, _ in CONSTRAINTS} | {"smem_fits"}


@pytest.mark.parametrize("name", ["batch", "heads"])
def test_more_than_a_grid_holds_is_refused(name: str) -> None:
    family = families.get("sm80")
    workload = Workload(1, 1, 1, 1, 1, 128, DType.FP16)
    assert family.geometry(_DEFAULT, replace(workload, **{name: 65535}), DEVICE).grid
    with pytest.raises(InvalidConfig, match=f"{name} must be at most 65535, not 65536"):
        family.geometry(_DEFAULT, replace(workload, **{name: 65536}), DEVICE)


def test_static_asserts_say_the_same_sentences() -> None:
    text = (kernels_dir() / "sm80" / "constraints.cuh").read_text()
    joined = re.sub(r'"\s+"', "", text)  # adjacent literals are one
    sentences = re.findall(r'static_assert\(.*?"([^"]+)"', joined, re.DOTALL)
    assert sentences == [sentence for _, sentence, _ in CONSTRAINTS]


def test_parameters_are_laid_out_as_the_struct() -> None:
    """kernels/sm80/params.cuh: pointers, strides, then 32-bit numbers, no padding between."""
    text = (kernels_dir() / "sm80" / "params.cuh").read_text()
    body = text[text.index("struct ForwardParams") :]
    body = body[: body.index("};")]
    names = re.findall(r"(\w+)(?=[,;])", re.sub(r"//.*", "", body))
    fields = [name.removesuffix("_address") for name in params_dtype().names or ()]
    assert fields == names
    assert params_dtype().itemsize == 5 * 8 + 4 * 3 * 8 + 5 * 4 + 4
    assert np.zeros(1, params_dtype()).dtype.alignment == 8
