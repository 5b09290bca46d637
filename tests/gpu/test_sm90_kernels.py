"""The sm90 kernels are right and finish: the sets by the product's own check, every scheduler,
order and rescale policy on problems of odd shapes, and thousands of launches in a row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fa_tune import device as devices
from fa_tune import pipeline
from fa_tune.arch import limits
from fa_tune.compile import BuildRequest
from fa_tune.families.sm90 import Order, Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90_constraints import constraints
from fa_tune.families.sm90_sets import default_config
from fa_tune.jobs import run_items
from fa_tune.model import DType, Outcome
from fa_tune.options import MachineOptions, Silent
from tests.gpu.cases import random_grid
from tests.gpu.conftest import Built

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

H200 = limits((9, 0))
LAUNCHES = 10_000
PROBLEMS = 200  # different ones among the launches


@pytest.fixture(autouse=True)
def hopper() -> None:
    """Nothing else runs wgmma."""
    device = devices.find_device()
    if device is None or device.compute_capability != (9, 0):
        pytest.skip("the sm90 family needs a GPU of compute capability 9.0")


@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("kernels", ["tune", "prog"])
def test_every_variant_of_a_set_is_right(
    machine: MachineOptions, kernels: str, d_head: int
) -> None:
    report = pipeline.verify(
        kernels, (d_head,), machine, Silent(), names=("sm90",), masks=("full", "causal"), lse=True
    )
    assert report.failures == ()
    assert {k: v.reason for k, v in report.verdicts.items() if not v.correct} == {}
    assert {reason.constraint for _, reason in report.rejected} <= {"smem_fits"}


def paths() -> list[Sm90Config]:
    """Configs that together take every branch of the kernel."""
    base = default_config(128, DType.FP16)
    single = replace(base, q_stages=1, carry=False, scheduler=Scheduler.SINGLE)
    static = replace(base, scheduler=Scheduler.STATIC, order=Order.LINEAR)
    one = replace(base, d_head=64, consumers=1, pingpong=False, B_r=64, B_c=96)
    two_tiles = replace(base, d_head=64, m_tiles=2, B_r=256, B_c=80)
    found = [
        base,
        replace(base, rescale=Rescale.LAZY, dtype=DType.BF16),
        replace(base, stages=1),
        replace(base, q_registers=True),
        replace(base, d_head=64, consumers=4, B_r=256, B_c=64, dtype=DType.BF16),
        single,
        replace(single, overlap=False, pingpong=False, consumers=1, B_r=64),
        replace(single, overlap=False, dtype=DType.BF16),
        replace(single, pin=True, rescale=Rescale.BEFORE_PRODUCT, B_c=176),
        static,
        replace(static, order=Order.PAIRED),
        replace(static, carry=False, order=Order.LONGEST_FIRST),
        replace(static, stages=8, B_c=16, pingpong=False),
        replace(base, v_stages=1),
        replace(base, d_head=64, stages=1, v_stages=3, dtype=DType.BF16),
        two_tiles,
        replace(two_tiles, dtype=DType.BF16, rescale=Rescale.LAZY, cluster=2, pingpong=False),
        replace(two_tiles, consumers=1, pingpong=False, B_r=128, ctas=2),
        replace(single, d_head=64, overlap=False, pingpong=False, m_tiles=2, B_r=256, B_c=64),
        replace(base, cluster=2),
        replace(base, cluster=2, consumers=3, B_r=192, B_c=80, rescale=Rescale.LAZY, stages=3),
        replace(static, order=Order.PAIRED, cluster=2, dtype=DType.BF16),
        replace(single, cluster=2, order=Order.LONGEST_FIRST),
        replace(one, ctas=3),
        replace(one, ctas=3, scheduler=Scheduler.SINGLE, q_stages=1, carry=False),
        replace(one, ctas=4, B_c=48, dtype=DType.BF16),
        replace(one, ctas=2, cluster=2),
        replace(base, soft_exp=4),
        replace(base, split_diagonal=True),
        replace(two_tiles, B_c=64, split_diagonal=True),
        replace(base, soft_exp=16, d_head=64, dtype=DType.BF16, rescale=Rescale.LAZY),
        *(default_config(d, dtype) for d in (64, 192, 256) for dtype in DType),
    ]
    return list(dict.fromkeys(found))


def test_launches_in_a_row_finish_and_repeat_bitwise(built: Built) -> None:
    """Random problems on every path.  Each is launched many times back to back into outputs
    filled with NaN; a barrier out of step would hang or let stale numbers through."""
    assert [c for c in paths() if constraints(c, H200) is not None] == []
    cases = random_grid(90, PROBLEMS, paths())
    requests: dict[BuildRequest, list[dict[str, Any]]] = {}
    for case in cases:
        requests.setdefault(case.request(H200), []).append(case.to_json())
    artifacts = built(list(requests))
    items = {
        f"{a.variant.key} @ {a.traits}": {
            "subject": a.variant.key,
            "cubin": a.cubin,
            "symbol": a.symbol,
            "cases": of_kernel,
            "repeats": LAUNCHES // PROBLEMS,
        }
        for a, of_kernel in zip(artifacts, requests.values(), strict=True)
    }
    results = run_items("tests.gpu.repeat_child:handle", {"device": 0}, items, item_timeout_s=120)
    found = list(results)
    assert {r.item: r.reason for r in found if r.outcome is not Outcome.OK} == {}
    assert [figures for r in found for figures in r.value if not figures["repeats"]] == []
    assert [figures for r in found for figures in r.value if figures["n_nan"]] == []
