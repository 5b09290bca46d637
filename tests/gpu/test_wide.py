"""Kernels at the ends of what is accepted: scales from 1e-6 to 1e6, scores beyond 1e5, structure
along the keys, 131072 tokens, several streams; see wide.py.

Scales to 1e30, NaN and infinity are in any_bits.py and poison.py, tensors of more than 2^31
elements in offsets.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from fa_tune import families
from fa_tune.core.arch import ArchLimits, parse_arch
from fa_tune.core.model import Artifact, Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import KernelFamily
from tests.gpu.cases import item_of, request
from tests.gpu.conftest import Built, faults_of

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

import torch

from fa_tune.operations.base import Tensors
from tests.gpu import wide
from tests.gpu.tiled_kernel import TiledKernel
from tests.gpu.wide import check, inputs_of, long_problems, problems

on_gpu = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]
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
    limits = parse_arch(arch)
    by_build: dict[Any, list[tuple[str, str]]] = {}
    for (variant, d_head, dtype), causal in itertools.product(
        defaults(family, limits, d_heads), (False, True)
    ):
        for name, workload in wanted(d_head, dtype, causal):
            build = request(variant, workload, limits)
            by_build.setdefault(build, []).append((workload.key, name))
    return {
        f"{a.variant.key} @ {a.traits}": {**item_of(a), "problems": found}
        for a, found in zip(built(list(by_build)), by_build.values(), strict=True)
    }


def compiled(built: Built, arch: str, asked: Sequence[tuple[Variant, Workload]]) -> list[Artifact]:
    """The kernel of each, all compiled at once; some may be the same."""
    requests = [request(variant, w, parse_arch(arch)) for variant, w in asked]
    once = list(dict.fromkeys(requests))
    found = dict(zip(once, built(once), strict=True))
    return [found[one] for one in requests]


class TestOnGpu:
    pytestmark = on_gpu

    def test_scales_scores_and_structure(
        self, family: KernelFamily, arch: str, built: Built
    ) -> None:
        items = items_for(family, arch, built, D_HEADS, problems)
        assert not faults_of("wide_child:handle", items, SMALL_S)

    def test_lengths_to_131072(self, family: KernelFamily, arch: str, built: Built) -> None:
        items = items_for(family, arch, built, LONG_D_HEADS, long_problems)
        assert not faults_of("wide_child:handle", items, LONG_S)

    def test_launches_that_overlap(self, family: KernelFamily, arch: str, built: Built) -> None:
        # A quarter of a wave of an H200 each at first, then several.
        asked = [
            (variant, Workload(batch, 8, 4, 513, 1025, d_head, dtype, causal=causal))
            for variant, d_head, dtype in defaults(family, parse_arch(arch), D_HEADS)
            for causal, batch in itertools.product((False, True), (1, 9))
        ]
        artifacts = compiled(built, arch, asked)
        items = {
            f"{variant.key} {w.key}": {**item_of(artifact), "workload": w.key}
            for (variant, w), artifact in zip(asked, artifacts, strict=True)
        }
        assert not faults_of("wide_child:handle_streams", items, STREAMS_S)


# Without a GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "causal"), [(DType.FP16, False), (DType.BF16, True)])
def test_a_right_kernel_passes_and_a_wrong_one_does_not(dtype: DType, causal: bool) -> None:
    for name, w in problems(64, dtype, causal):
        assert check(name, w, TiledKernel(), "cpu") == []
    name, w = next(problems(64, dtype, causal))
    assert check(name, w, TiledKernel(fault="lse_base_2"), "cpu")


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
