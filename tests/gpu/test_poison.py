"""NaN and infinity reach whom they must and nobody else, as in torch; see tests/gpu/poison.py."""

import math
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.arch import ArchLimits, parse_arch
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import KernelFamily
from tests.gpu.cases import grid_configs, item_of, request, takes
from tests.gpu.conftest import Built, faults_of

pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

import torch

from fa_tune.operations.base import Tensors
from tests.gpu.poison import Problem, check, problem
from tests.gpu.tiled_kernel import TiledKernel

SOFTCAP = 15.0


def problems(family: KernelFamily, limits: ArchLimits) -> list[Problem]:
    """Whole blocks without a mask and odd lengths with one for every config of the grid, and for
    the defaults the other way round, and both with a soft cap."""
    found = []
    for config in grid_configs(family, limits):
        kinds: list[tuple[str, bool, float | None]] = [
            ("full", False, None),
            ("causal_br", True, None),
        ]
        if config == family.default_config(config.d_head, config.dtype):
            kinds += [("full", True, None), ("causal", False, None)]
            kinds += [("full", False, SOFTCAP), ("causal_br", True, SOFTCAP)]
        variant, (b_r, b_c) = families.variant(config), families.blocks(config)
        # The CTAs of a cluster visit the same keys: their tiles are one.
        blocks = (b_r * getattr(config, "cluster", 1), b_c)
        for mask, ragged, cap in kinds:
            shape = Workload(1, 1, 1, 1, 1, config.d_head, config.dtype, softcap=cap)
            if takes(family, config, shape):
                found.append(problem(variant, shape, blocks, mask=mask, ragged=ragged))
    return found


@pytest.mark.gpu
def test_nan_and_infinity_reach_whom_they_must_and_nobody_else(
    family: KernelFamily, built: Built, arch: str
) -> None:
    limits = parse_arch(arch)
    wanted = problems(family, limits)
    requests = [request(p.variant, p.workload, limits) for p in wanted]
    items: dict[str, dict[str, Any]] = {
        f"{a.variant.key} @ {p.workload.key}": item_of(a) | {"problem": codec.dump(p)}
        for a, p in zip(built(requests), wanted, strict=True)
    }
    assert len(items) == len(wanted)
    assert not faults_of("judging_children:poisoned", items, 60)


# Without a GPU ----------------------------------------------------------------------------------


VARIANT = Variant("sm80", "any")
BLOCKS = (16, 8)
CASES = [("full", False), ("causal_br", True), ("full", True), ("causal", False)]


def small(mask: str, ragged: bool, dtype: DType = DType.FP16) -> Problem:
    shape = Workload(1, 1, 1, 1, 1, 32, dtype)
    return problem(VARIANT, shape, BLOCKS, mask=mask, ragged=ragged)


def kind_of(fault: str) -> str:
    return fault.partition(" at ")[0].split()[-1]


@pytest.mark.parametrize(("mask", "ragged"), CASES)
def test_what_the_kernels_compute_passes(mask: str, ragged: bool) -> None:
    kernel = TiledKernel(*BLOCKS)
    assert check(small(mask, ragged), kernel, None, "cpu") == []
    assert check(small(mask, ragged, DType.BF16), kernel, None, "cpu") == []


@pytest.mark.parametrize("tiles", [(48, 48), (16, 32)])
def test_a_leak_beyond_the_tile_is_found(tiles: tuple[int, int]) -> None:
    """A kernel with larger tiles than it says lets hidden keys of V reach more rows."""
    found = check(small("causal_br", True), TiledKernel(*tiles), None, "cpu")
    assert found
    assert {kind_of(text) for text in found} <= {"nan_v", "inf_v", "minus_inf_v"}


def changed(nan: float, posinf: float, neginf: float) -> Any:
    """A kernel that puts numbers in place of what is none."""
    kernel = TiledKernel(*BLOCKS)

    def call(w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        kernel(w, inputs, out, lse)
        out.nan_to_num_(nan=nan, posinf=posinf, neginf=neginf)

    return call


@pytest.mark.parametrize(
    ("kernel", "kinds"),
    [
        (changed(0.0, math.inf, -math.inf), {"nan_q", "inf_q", "nan_k", "inf_k", "nan_v"}),
        (changed(math.nan, 6e4, -math.inf), {"inf_v"}),
        (changed(math.nan, math.inf, math.nan), {"minus_inf_v"}),
    ],
)
def test_what_is_swallowed_is_missed(kernel: Any, kinds: set[str]) -> None:
    found = check(small("full", False), kernel, None, "cpu")
    assert {kind_of(text) for text in found} == kinds


def test_flash_attention_2_sets_the_limit() -> None:
    """Against a library of smaller tiles, larger ones leak more than is allowed."""
    kernel = TiledKernel(*BLOCKS)

    def library_of(tiles: TiledKernel) -> Any:
        def call(w: Workload, inputs: Tensors) -> torch.Tensor:
            out = torch.empty_like(inputs["q"])
            tiles(w, inputs, out, None)
            return out

        return call

    one = small("causal_br", True)
    assert check(one, kernel, library_of(TiledKernel(*BLOCKS)), "cpu") == []
    larger = library_of(TiledKernel(48, 32))
    assert check(one, kernel, larger, "cpu") == [], "it may leak more than we do"
    found = check(one, kernel, library_of(TiledKernel(4, 4)), "cpu")
    assert found
    assert all("hidden keys show in" in text for text in found)
