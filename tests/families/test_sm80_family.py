"""The sm80 family keeps the contract, and says in Python what its kernel asserts."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from fa_tune import families
from fa_tune.families.sm80 import CONSTRAINTS, FlashForwardKernelConfig, params_dtype
from fa_tune.model import DType
from fa_tune.paths import kernels_dir
from tests.families.contract import KernelFamilyContract

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

    def test_each_constraint_is_tried(self) -> None:
        named = {
            next((name for name, _, holds in CONSTRAINTS if not holds(config)), "smem_fits")
            for config in self.bad_configs
        }
        assert named == {name for name, _, _ in CONSTRAINTS} | {"smem_fits"}


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
