"""Every kernel is right: whole sets by the product's own check, and a sample that takes every
code path by another one."""

from __future__ import annotations

import itertools

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import parse_arch
from fa_tune.core.model import Outcome
from fa_tune.core.options import MachineOptions, Silent, WorkloadOptions
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.sets import select_configs
from fa_tune.tune import single
from fa_tune.workers.supervisor import ItemResult, run_items
from tests.gpu.cases import named
from tests.gpu.conftest import Built
from tests.tools.required import GROUPS, code_path_builds

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

LSE_TOLERANCE = 1e-3
D_HEADS = (64, 128)
ALL_TRAITS = (
    "plain", "ragged", "causal", "lse", "causal+ragged", "ragged+lse", "causal+lse",
    "causal+ragged+lse",
)  # fmt: skip


# Whole sets -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernels", "d_head"), GROUPS)
def test_every_variant_of_a_set_is_right_on_whole_blocks_and_ragged_lengths(
    machine: MachineOptions, kernels: str, d_head: int
) -> None:
    report = single.verify(
        kernels, WorkloadOptions(d_heads=(d_head,)), machine, Silent(), names=("sm80",)
    )
    assert report.failures == ()
    assert {k: v.reason for k, v in report.verdicts.items() if not v.correct} == {}
    refusals = {reason.constraint for _, reason in report.rejected}
    assert refusals <= {"smem_fits", "ping_pong_needs_9_0"}
    dtypes = [DType.FP16] if kernels == "prog" else None
    expected = len(select_configs(kernels, dtypes=dtypes, d_head=d_head))
    assert len(report.verdicts) == 2 * (expected - len(report.rejected))
    assert all(len(v.cases) >= 3 for v in report.verdicts.values())


# Every code path, and every combination of traits -----------------------------------------------


def configs_for_traits(arch: str) -> list[FlashForwardKernelConfig]:
    """Per d_head and type the default config and, where it can run, one whose warps take turns
    and one with several stages."""
    limits = parse_arch(arch)
    found: list[FlashForwardKernelConfig] = []
    for d_head, dtype in itertools.product(D_HEADS, DType):
        fast = [
            c
            for c in select_configs("fast", dtypes=[dtype], d_head=d_head)
            if constraints(c, limits) is None
        ]
        found.append(families.get("sm80").default_config(d_head, dtype))
        found += [c for c in fast if c.kv_stages > 1 and not c.ping_pong][-1:]
        found += [c for c in fast if c.ping_pong][-1:]
    return found


def trait_builds(arch: str) -> list[BuildRequest]:
    """Those with every combination of traits."""
    family = families.get("sm80")
    return [
        BuildRequest(families.variant_of(family, config), traits, arch)
        for config in configs_for_traits(arch)
        for traits in ALL_TRAITS
    ]


Checked = dict[str, ItemResult]


@pytest.fixture(scope="module")
def checked(built: Built, arch: str) -> Checked:
    """What the worker found, by variant and traits."""
    artifacts = built([*code_path_builds(arch), *trait_builds(arch)])
    handler = "tests.gpu.kernel_child:handle"
    found = run_items(handler, {"device": 0}, named(artifacts), item_timeout_s=120)
    return {result.item: result for result in found}


def faults(result: ItemResult) -> list[str]:
    """What is wrong with any case, in words."""
    if result.outcome is not Outcome.OK:
        return [f"{result.outcome}: {result.reason}"]
    assert result.value, "no case was run"
    return [
        f"{case['case']}: {what}"
        for case in result.value
        for what, fine in (
            (f"error {case['error']} exceeds {case['limit']}", case["error"] <= case["limit"]),
            ("two launches differ", case["repeats"]),
            ("it wrote beside O, or not all of it", case["stays_inside"]),
            ("rows that see nothing are not 0", case["empty_rows_are_zero"]),
            (
                f"log-sum-exp is off by {case.get('lse_error')}",
                case.get("lse_error", 0) <= LSE_TOLERANCE,
            ),
            ("log-sum-exp of empty rows is not -inf", case.get("lse_of_empty_rows", True)),
            ("two log-sum-exps differ", case.get("lse_repeats", True)),
            ("it wrote beside the log-sum-exp", case["lse_stays_inside"]),
        )
        if not fine
    ]


def test_every_code_path_is_right(checked: Checked, arch: str) -> None:
    wanted = [f"{r.variant.key} @ {r.traits}" for r in code_path_builds(arch)]
    assert wanted
    wrong = {key: found for key in wanted if (found := faults(checked[key]))}
    assert not wrong


@pytest.mark.parametrize("traits", ALL_TRAITS)
def test_every_combination_of_traits_is_right(checked: Checked, arch: str, traits: str) -> None:
    wanted = [f"{r.variant.key} @ {traits}" for r in trait_builds(arch) if r.traits == traits]
    kinds = 2 if parse_arch(arch).compute_capability < (9, 0) else 3
    assert len(wanted) == kinds * len(D_HEADS) * len(DType)
    wrong = {key: found for key in wanted if (found := faults(checked[key]))}
    assert not wrong


def test_rows_that_see_nothing_were_among_them(checked: Checked) -> None:
    """Else the tests above would not have looked at any."""
    results = [r for key, r in checked.items() if "causal" in key and "lse" in key]
    empty = [c["n_empty"] for r in results for c in r.value or () if c["case"]["diagonal"] < 0]
    assert empty
    assert all(empty)
