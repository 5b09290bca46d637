"""Kernels at the ends of what is accepted: scales from 1e-6 to 1e6, scores beyond 1e5, structure
along the keys, 131072 tokens, several streams; see wide.py.

Scales to 1e30, NaN and infinity are in any_bits.py and poison.py, tensors of more than 2^31
elements in offsets.py.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.arch import ArchLimits, parse_arch
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import KernelFamily
from tests.gpu.cases import request
from tests.gpu.conftest import Built, faults_of, items_with, problem_items

pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

import torch

from fa_tune.operations.base import Tensors
from tests.gpu import wide
from tests.gpu.tiled_kernel import TiledKernel
from tests.gpu.wide import check, inputs_of, long_problems, problems

D_HEADS = (64, 128, 192, 256)
LONG_D_HEADS = (64, 128)
SMALL_S, LONG_S, STREAMS_S = 60.0, 240.0, 60.0  # deadlines of a kernel

Problems = Callable[[int, DType, bool], Iterator[tuple[str, Workload]]]


def defaults(
    family: KernelFamily, limits: ArchLimits, d_heads: Sequence[int]
) -> list[tuple[Variant, int, DType]]:
    """The default config per head dimension and type, where it runs."""
    found = []
    for d_head, dtype in itertools.product(d_heads, DType):
        config = family.default_config(d_head, dtype)
        if family.constraints(config, limits) is None:
            found.append((families.variant_of(family, config), d_head, dtype))
    return found


def items_for(
    family: KernelFamily, arch: str, built: Built, d_heads: Sequence[int], wanted: Problems
) -> dict[str, Any]:
    """Items with the problems of each kernel."""
    found = parse_arch(arch)
    return problem_items(
        *(built, found),
        (
            (variant, workload, name)
            for variant, d_head, dtype in defaults(family, found, d_heads)
            for causal in (False, True)
            for name, workload in wanted(d_head, dtype, causal)
        ),
    )


class TestOnGpu:
    pytestmark = pytest.mark.gpu

    def test_scales_scores_and_structure(
        self, family: KernelFamily, arch: str, built: Built
    ) -> None:
        items = items_for(family, arch, built, D_HEADS, problems)
        assert not faults_of("judging_children:wide_problems", items, SMALL_S)

    def test_lengths_to_131072(self, family: KernelFamily, arch: str, built: Built) -> None:
        items = items_for(family, arch, built, LONG_D_HEADS, long_problems)
        assert not faults_of("judging_children:wide_problems", items, LONG_S)

    def test_launches_that_overlap(self, family: KernelFamily, arch: str, built: Built) -> None:
        # A quarter of a wave of an H200 each at first, then several.
        limits, items = parse_arch(arch), dict[str, Any]()
        for causal, batch in itertools.product((False, True), (1, 9)):
            asked = {
                request(variant, w, limits): w.key
                for variant, d_head, dtype in defaults(family, limits, D_HEADS)
                for w in (Workload(batch, 8, 4, 513, 1025, d_head, dtype, causal=causal),)
            }
            found = items_with(built, "workload", asked)
            items |= {f"{name} {batch}": item for name, item in found.items()}
        assert not faults_of("judging_children:streams", items, STREAMS_S)


# Without a GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "causal"), [(DType.FP16, False), (DType.BF16, True)])
def test_a_right_kernel_passes_and_a_wrong_one_does_not(dtype: DType, causal: bool) -> None:
    tiles = (512, 128)  # large ones are quick
    for name, w in problems(64, dtype, causal):
        assert check(name, w, TiledKernel(*tiles), "cpu") == []
    name, w = next(problems(64, dtype, causal))
    assert check(name, w, TiledKernel(*tiles, fault="lse_base_2"), "cpu")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("q", "kv"), [(300, 350), (350, 100)])
def test_long_problems_are_judged_by_some_of_their_rows(
    monkeypatch: pytest.MonkeyPatch, q: int, kv: int, causal: bool
) -> None:
    monkeypatch.setattr(wide, "ROWS", 96)
    w = Workload(1, 2, 1, q, kv, 64, DType.FP16, causal=causal, bottom_right=causal, lse=True)
    assert check("normal", w, TiledKernel(), "cpu") == []
    assert len(check("normal", w, TiledKernel(fault="lse_base_2"), "cpu")) >= 1

    def forgetful(w: Workload, given: Tensors, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        TiledKernel()(w, given, out, lse)
        out[0, 110] = math.nan  # between the rows that are judged

    first, *_ = check("normal", w, forgetful, "cpu")
    assert first == f"normal {w.key}: not all rows are numbers"


def test_scores_reach_1e5_and_beyond() -> None:
    largest = []
    for name, w in problems(128, DType.BF16, False):
        given = inputs_of(name, w, 0, "cpu")
        scores = given["q"][0, :, 0].float() @ given["k"][0, :, 0].float().T * w.scale
        largest.append(float(scores.abs().max()))
        if name == "peaked:12":
            assert float(scores.std()) == pytest.approx(12, rel=0.15)
    assert max(largest) > 1e7
    assert min(largest) < 1e-4
    assert any(1e5 < score < 1e6 for score in largest)
