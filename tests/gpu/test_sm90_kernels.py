"""The sm90 kernels are right: the sets by the product's own check, every pair of choices by
another one.

tests/gpu/test_grid.py, test_repeats.py, test_poison.py and test_offsets.py take every family,
this one as well; tests/gpu/test_stress.py holds its roles up.
"""

from dataclasses import replace

import pytest

from fa_tune.core.arch import limits
from fa_tune.core.options import MachineOptions, Silent, WorkloadOptions
from fa_tune.core.workload import DType
from fa_tune.families.sm90.config import Order, Rescale, Scheduler, Sm90Config
from fa_tune.families.sm90.constraints import constraints
from fa_tune.families.sm90.defaults import default_config
from fa_tune.tune import single
from tests.gpu.conftest import Built, faults_of
from tests.gpu.test_kernels import awkward_items
from tests.tools.required_sm90 import D_HEADS, GROUPS, code_path_builds

HOPPER = limits((9, 0))


def paths() -> list[Sm90Config]:
    """Configs that together take every branch of the kernel."""
    base = replace(default_config(128, DType.FP16), rows_in_turn=False, adaptive_max=False)
    single = replace(base, q_stages=1, cross_tile_overlap=False, scheduler=Scheduler.SINGLE)
    static = replace(base, scheduler=Scheduler.STATIC, order=Order.LINEAR)
    one = replace(base, d_head=64, mma_warpgroups=1, pingpong=False, B_c=96)
    found = [
        base,
        replace(base, rescale=Rescale.THRESHOLDED, dtype=DType.BF16),
        replace(base, rescale=Rescale.EACH_BLOCK),
        replace(base, stages=1),
        replace(base, d_head=64, mma_warpgroups=4, B_c=64, dtype=DType.BF16),
        single,
        replace(single, overlap=False, pingpong=False, mma_warpgroups=1),
        replace(single, overlap=False, dtype=DType.BF16),
        replace(single, rescale=Rescale.THRESHOLDED, B_c=176),
        replace(single, splits=2),
        replace(single, mma_warpgroups=1, pingpong=False, B_c=64, splits=8),
        static,
        replace(static, cross_tile_overlap=False, order=Order.LONGEST_FIRST),
        replace(static, stages=8, B_c=16, pingpong=False),
        replace(base, early_test_wait=True),
        replace(base, single_loop=True),
        replace(default_config(64, DType.BF16), single_loop=False),
        replace(single, order=Order.LONGEST_FIRST),
        replace(one, min_ctas_per_sm=3),
        replace(
            one, min_ctas_per_sm=3, scheduler=Scheduler.SINGLE, q_stages=1, cross_tile_overlap=False
        ),
        replace(one, min_ctas_per_sm=4, B_c=48, dtype=DType.BF16),
        replace(base, d_head=64, dtype=DType.BF16, rescale=Rescale.THRESHOLDED),
        *(default_config(d, dtype) for d in (64, 128, 192, 256) for dtype in DType),
        replace(base, B_c=64, rows_in_turn=True, single_loop=True),
        replace(base, rows_in_turn=True, adaptive_max=True),
        replace(base, d_head=64, mma_warpgroups=3, single_loop=True, adaptive_max=True),
    ]
    return list(dict.fromkeys(found))


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
class TestOnTheGpu:
    @pytest.mark.parametrize(("kernels", "d_head"), [*GROUPS, *(("tune", d) for d in D_HEADS)])
    def test_every_variant_of_a_set_is_right(
        self, machine: MachineOptions, kernels: str, d_head: int
    ) -> None:
        report = single.verify(
            kernels,
            WorkloadOptions(d_heads=(d_head,), masks=("full", "causal"), common={"lse": True}),
            machine,
            Silent(),
            names=("sm90",),
        )
        assert report.failures == ()
        assert {k: v.reason for k, v in report.verdicts.items() if not v.correct} == {}
        assert {reason.constraint for _, reason in report.rejected} <= {"smem_fits"}
        assert report.verdicts

    def test_every_pair_of_choices_is_right(self, built: Built) -> None:
        """By another reference than the product's own."""
        items = awkward_items(code_path_builds(), built)
        assert not faults_of("judging_children:cases", items, 120)


# Without a GPU ----------------------------------------------------------------------------------


def test_the_paths_can_run() -> None:
    assert [c for c in paths() if constraints(c, HOPPER) is not None] == []
