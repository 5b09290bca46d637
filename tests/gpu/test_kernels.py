"""Every kernel is right: whole sets by the product's own check, and a sample that takes every
code path by another one."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import parse_arch
from fa_tune.core.options import MachineOptions, Silent, WorkloadOptions
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.sets import select_configs
from fa_tune.tune import single
from tests.gpu.cases import awkward_cases, requests_of
from tests.gpu.conftest import Built, case_items, faults_of
from tests.tools.required import GROUPS, code_path_builds

pytestmark = pytest.mark.gpu

D_HEADS = (64, 128)
ALL_TRAITS = (
    "plain", "ragged", "causal", "lse", "causal+ragged", "ragged+lse", "causal+lse",
    "causal+ragged+lse",
)  # fmt: skip


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
    return requests_of(configs_for_traits(arch), ALL_TRAITS, parse_arch(arch))


def awkward_items(requests: Sequence[BuildRequest], built: Built) -> dict[str, dict[str, Any]]:
    """The kernels, each with its awkward cases."""
    items = case_items(built, {one: awkward_cases(one) for one in requests})
    assert all(item["cases"] for item in items.values())
    return items


def test_every_code_path_is_right(built: Built, arch: str) -> None:
    items = awkward_items(code_path_builds(arch), built)
    assert not faults_of("judging_children:cases", items, 120)


def test_every_combination_of_traits_is_right(built: Built, arch: str) -> None:
    items = awkward_items(trait_builds(arch), built)
    assert not faults_of("judging_children:cases", items, 120)
