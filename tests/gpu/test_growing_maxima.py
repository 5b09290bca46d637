"""Kernels that keep a maximum for as long as they can notice when they cannot; see growing.py."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

from fa_tune.core.arch import limits
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.families.sm90.config import GROUP_ROWS, Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90.constraints import constraints
from fa_tune.families.sm90.defaults import default_config
from fa_tune.families.sm90.sets import get_configs
from tests.gpu.conftest import Built, faults_of, problem_items

pytest.importorskip("torch", reason="torch is not installed: there is nothing to judge with")

import torch

from tests.gpu.growing import GROWTHS, SLOPES, STEADY_GROWTHS, STEP, check, growing_inputs
from tests.gpu.oracle import attention
from tests.gpu.tiled_kernel import TiledKernel

HOPPER = limits((9, 0))
D_HEADS = (64, 80, 96, 112, 128, 192, 256)
LENGTHS = ((700, 1000), (1000, 700), (1024, 1023), (333, 1025), (64, 1100))


def configs() -> list[Sm90Config]:
    """Every policy on the default's tile, and the trusting one on every path that it has."""
    found = []
    for d_head, dtype in itertools.product(D_HEADS, DType):
        base = default_config(d_head, dtype)
        found += [base]
        other = replace(base, single_loop=False, rows_in_turn=False, adaptive_max=False)
        found += [replace(other, rescale=r) for r in Rescale]
    base = replace(default_config(128, DType.FP16), rows_in_turn=False, adaptive_max=False)
    serial = replace(base, cross_tile_overlap=False, overlap=False, pingpong=False)
    found += [
        serial,
        replace(serial, scheduler=Scheduler.SINGLE, q_stages=1),
        replace(base, early_test_wait=True),
        replace(base, mma_warpgroups=3, B_c=80, early_test_wait=True),
        replace(base, d_head=64, mma_warpgroups=4, B_c=64),
        replace(base, d_head=64, mma_warpgroups=1, pingpong=False, B_c=96, min_ctas_per_sm=3),
        replace(base, single_loop=True, dtype=DType.BF16),
        replace(base, single_loop=True, rows_in_turn=True, B_c=64),
        replace(base, d_head=96, rows_in_turn=True, B_c=144),
        replace(base, rows_in_turn=True, adaptive_max=True),
        replace(base, d_head=96, dtype=DType.BF16, adaptive_max=True),
        replace(base, d_head=64, mma_warpgroups=3, single_loop=True, adaptive_max=True),
    ]
    fast = [c for d_head in D_HEADS for c in get_configs("fast", d_head=d_head)]
    found += [c for c in fast if c.rescale is Rescale.STALE_MAX]
    return list(dict.fromkeys(c for c in found if constraints(c, HOPPER) is None))


def problems(config: Sm90Config) -> Iterator[tuple[Workload, int]]:
    """Each growth on a problem; ragged and grouped, with either mask and none, in turn."""
    block = math.lcm(config.B_r, config.B_c)
    whole = Workload(2, 2, 1, block, block, config.d_head, config.dtype)
    masks = itertools.cycle(
        [{"lse": True}, {"causal": True, "bottom_right": True, "lse": True},
         {"causal": True, "lse": True}]
    )  # fmt: skip
    lengths = itertools.cycle(LENGTHS)
    for growth in (*GROWTHS, *STEADY_GROWTHS):
        q, kv = next(lengths)
        shape = replace(whole, heads=4, kv_heads=2, seq_len_q=q, seq_len_kv=kv)
        yield replace(shape, **next(masks)), growth
    if block <= 2048:
        yield whole, 16
        yield replace(whole, causal=True), 16


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_growing_maxima_are_noticed(built: Built) -> None:
    wanted = (
        (Variant("sm90", str(config)), *problem)
        for config in configs()
        for problem in problems(config)
    )
    items = problem_items(built, HOPPER, wanted)
    assert not faults_of("judging_children:growing_problems", items, 60)


# Without a GPU ----------------------------------------------------------------------------------


SMALL = Workload(1, 2, 1, 96, 320, 64, DType.FP16, lse=True)


@pytest.mark.parametrize("growth", [*GROWTHS, *STEADY_GROWTHS])
def test_a_kernel_that_looks_passes(growth: int) -> None:
    assert check(growth, SMALL, TiledKernel(96, STEP, trusts=2048.0), "cpu") == []


@pytest.mark.parametrize("growth", [5, 17, 200, -12])
def test_a_kernel_that_trusts_too_much_is_found(growth: int) -> None:
    """2^16 overflows fp16, and later fp32."""
    assert check(growth, SMALL, TiledKernel(96, STEP, trusts=math.inf), "cpu")


def test_every_warp_has_every_slope_and_maxima_grow_as_named() -> None:
    assert len(SLOPES) < GROUP_ROWS // 4
    inputs = growing_inputs(SMALL, 40, 1, "cpu")
    scores = (
        inputs["q"][0, :, 0].double() @ inputs["k"][0, :, 0].double().T * SMALL.scale / math.log(2)
    )
    tops = scores.unflatten(1, (-1, STEP)).amax(-1)
    assert (tops[0].diff() - 40).abs().max() < 10
    assert (tops[1].diff() + 40).abs().max() < 10
    exact, _ = attention(inputs, SMALL, torch.float64)
    assert exact.isfinite().all()


def test_all_paths_of_the_trusting_policy_can_run() -> None:
    chosen = [c for c in configs() if c.rescale is Rescale.STALE_MAX]
    assert {c.d_head for c in chosen} == set(D_HEADS)
    assert {c.overlap for c in chosen} == {True, False}
    assert {c.mma_warpgroups for c in chosen} == {1, 2, 3, 4}
    grown = {growth for _, growth in problems(chosen[0])}
    assert grown == {*GROWTHS, *STEADY_GROWTHS}
