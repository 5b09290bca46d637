"""The sm90 kernels are right: the sets by the product's own check, every pair of choices by
another one.

tests/gpu/test_grid.py, test_repeats.py, test_poison.py and test_offsets.py take every family,
this one as well; tests/gpu/test_stress.py holds its roles up.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_tune.core.arch import limits
from fa_tune.core.model import DType
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90.constraints import constraints
from fa_tune.families.sm90.sets import default_config
from fa_tune.tune import single
from fa_tune.workers.supervisor import run_items
from tests.gpu.cases import named
from tests.gpu.conftest import Built
from tests.gpu.test_kernels import faults
from tests.tools.required_sm90 import D_HEADS, GROUPS, code_path_builds

HOPPER = limits((9, 0))


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
        replace(base, rescale=Rescale.EACH_BLOCK, stagger=True),
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
        replace(base, split_diagonal=True),
        replace(two_tiles, B_c=64, split_diagonal=True),
        replace(base, d_head=64, dtype=DType.BF16, rescale=Rescale.LAZY),
        *(default_config(d, dtype) for d in (64, 192, 256) for dtype in DType),
    ]
    return list(dict.fromkeys(found))


@pytest.mark.gpu
@pytest.mark.xdist_group("gpu")
@pytest.mark.usefixtures("hopper")
class TestOnTheGpu:
    @pytest.mark.parametrize(("kernels", "d_head"), [*GROUPS, *(("tune", d) for d in D_HEADS)])
    def test_every_variant_of_a_set_is_right(
        self, machine: MachineOptions, kernels: str, d_head: int
    ) -> None:
        report = single.verify(
            kernels,
            (d_head,),
            machine,
            Silent(),
            names=("sm90",),
            masks=("full", "causal"),
            lse=True,
        )
        assert report.failures == ()
        assert {k: v.reason for k, v in report.verdicts.items() if not v.correct} == {}
        assert {reason.constraint for _, reason in report.rejected} <= {"smem_fits"}
        assert report.verdicts

    def test_every_pair_of_choices_is_right(self, built: Built) -> None:
        """By another reference than the product's own."""
        items = named(built(code_path_builds()))
        handler = "tests.gpu.kernel_child:handle"
        results = list(run_items(handler, {"device": 0}, items, item_timeout_s=120))
        assert {r.item: found for r in results if (found := faults(r))} == {}
        assert len(results) == len(items)


# Without a GPU ----------------------------------------------------------------------------------


def test_the_paths_can_run() -> None:
    assert [c for c in paths() if constraints(c, HOPPER) is not None] == []
