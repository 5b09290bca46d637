"""Every kernel ends, and is as finite as FlashAttention 2, whatever the bits; see any_bits.py.

A kernel that does not end is ended by its deadline.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fa_tune import families
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType
from fa_tune.families.sm90.config import Rescale, Sm90Config
from fa_tune.families.sm90.defaults import default_config
from tests.gpu.conftest import Built, faults_of, problem_items

pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

from tests.gpu.any_bits import inputs_of, workloads

D_HEADS = (64, 80, 96, 128, 192, 256)
DEADLINE_S = 30.0  # for all problems of a kernel, which take a second
SM80 = (
    "(FP16, 64, 128, 128, 4): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+rescale_8"
    "+interleave",
    "(BF16, 128, 128, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax+rescale_8"
    "+interleave",
    "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax",
    "(BF16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer",
    "(FP16, 64, 256, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8"
    "+pingpong",
)


def sm90_configs() -> Iterator[Sm90Config]:
    """Every policy with every d_head and type, and a stale maximum on its other paths."""
    for d_head, dtype in itertools.product(D_HEADS, DType):
        base = default_config(d_head, dtype)
        yield base
        other = replace(base, single_loop=False, rows_in_turn=False, adaptive_max=False)
        yield from (replace(other, rescale=policy) for policy in Rescale)
    base = replace(default_config(128, DType.FP16), rows_in_turn=False, adaptive_max=False)
    yield replace(base, cross_tile_overlap=False, overlap=False, pingpong=False)
    yield replace(base, mma_warpgroups=3, B_c=80)
    yield replace(base, rows_in_turn=True)
    yield replace(base, rows_in_turn=True, adaptive_max=True)
    yield replace(default_config(64, DType.FP16), adaptive_max=True)
    yield replace(base, single_loop=True, early_test_wait=True)
    yield replace(base, d_head=64, mma_warpgroups=1, pingpong=False, B_c=96, min_ctas_per_sm=3)


def variants(family: str) -> list[Variant]:
    """Those of a family that are tried."""
    if family == "sm80":
        return [families.variant(families.get("sm80").parse(form)) for form in SM80]
    return [families.variant(c) for c in dict.fromkeys(sm90_configs())]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["sm80", "sm90"])
def test_every_launch_ends_and_is_as_finite_as_flash_attention_2(
    name: str, arch: str, built: Built
) -> None:
    family, machine = families.get(name), parse_arch(arch)
    if (why := families.device_rejection(family, machine)) is not None:
        pytest.skip(f"{name}: {why.reason}")
    wanted = (
        (variant, workload, inputs)
        for variant, causal in itertools.product(variants(name), (False, True))
        for config in (family.parse(variant.config),)
        for inputs, workload in workloads(config.d_head, config.dtype, causal)
    )
    items = problem_items(built, machine, wanted)
    assert not faults_of("judging_children:any_bits_problems", items, DEADLINE_S)


def test_inputs_are_what_they_are_called() -> None:
    for name, w in workloads(64, DType.BF16, False):
        inputs = inputs_of(name, w, 0, "cpu")
        finite = all(bool(t.isfinite().all()) for t in (inputs["q"], inputs["k"], inputs["v"]))
        assert finite == (name not in ("bits", "infinity", "no_score", "few_scores", "nan")), name
