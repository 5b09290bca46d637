"""Plans: what C++ is told of a kernel is what Python launches."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.plan import Grid, LaunchPlan, Plan, Portability, compiled_for
from fa_tune.families.template import OneKernel
from fa_tune.operations.traits import Traits
from tests.families.contract import ARGS, DEVICE

H200 = limits((9, 0))


def configs() -> list[Config]:
    found = []
    for family in families.all_families():
        sets = [family.configs(key, d_head=d) for d in (64, 128) for key in ("all", "fast")]
        found += [c for c in itertools.chain(*sets) if family.constraints(c, H200) is None]
    return found


# Families that leave the base class's refusal are launched by Python alone.
PLANNED = [f for f in families.all_families() if type(f).plan is not OneKernel.plan]


@pytest.mark.parametrize("family", PLANNED, ids=lambda f: f.name)
def test_each_config_of_a_set_has_a_plan(family: KernelFamily) -> None:
    for config in configs():
        if families.of(config) is not family:
            continue
        call = family.plan(config, "causal+lse", "sm_90a")
        for spec, launch in zip(family.kernels(config, "causal+lse"), call.launches, strict=True):
            assert (launch.threads, launch.dynamic_smem_bytes) == (
                spec.threads,
                spec.dynamic_smem_bytes,
            )
            assert launch.counter_bytes == family.scratch_bytes(config)
        # Of kernels that CTAs share the keys of, one serves all lengths.
        any_length = call.launches[0].share_keys > 0
        whole = (1, 1) if any_length else family.whole_lengths(config)
        assert (call.plan.block_q, call.plan.block_kv) == whole
        assert (call.plan.causal, call.plan.ragged, call.plan.lse) == (1, 0, 1)
        assert (call.plan.dtype, call.plan.d_head) == (config.dtype, config.d_head)


@pytest.mark.parametrize("family", PLANNED, ids=lambda f: f.name)
def test_a_grid_is_persistent_where_more_work_adds_no_ctas(
    family: KernelFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner in ("sm80.family", "sm90.launch"):
        monkeypatch.setattr(f"fa_tune.families.{owner}.tensor_map", lambda *_, **__: None)
    for config in configs():
        if families.of(config) is not family:
            continue
        few, many = (
            family.launches(
                config,
                Workload(batch, 512, 512, 4096, 64, config.d_head, config.dtype),
                ARGS,
                DEVICE,
            )[0].geometry.grid
            for batch in (1, 2)
        )
        launch = family.plan(config, "plain", "sm_90").launches[0]
        most = launch.ctas_per_sm * DEVICE.multiprocessors
        if launch.cluster_x > 1:
            assert many[0] == 2 * few[0], "a cluster for each tile"
            continue
        if launch.grid is Grid.SHARES:
            assert most / 2 < few[0] <= many[0] <= most
            continue
        assert (few == many) == (launch.grid is Grid.PERSISTENT)
        if few == many:
            assert few[0] == most


@pytest.mark.parametrize(
    ("arch", "expected"),
    [
        ("sm_80", (80, Portability.MINOR)),
        ("sm_90a", (90, Portability.EXACT)),
        ("compute_80", (80, Portability.LATER)),
        ("sm_120", (120, Portability.MINOR)),
    ],
)
def test_which_devices_a_binary_serves(arch: str, expected: tuple[int, Portability]) -> None:
    assert compiled_for(arch) == expected


@pytest.mark.parametrize("arch", ["", "90", "sm90", "sm_90b", "sm_90a+"])
def test_what_is_no_architecture_is_refused(arch: str) -> None:
    with pytest.raises(InvalidConfig, match=re.escape(repr(arch))):
        compiled_for(arch)


def test_every_trait_is_in_the_plan() -> None:
    """A trait that plans do not know would let C++ run a kernel on problems it is not made for."""
    assert {f.name for f in dataclasses.fields(Traits)} <= {
        f.name for f in dataclasses.fields(Plan)
    }


def test_every_field_is_told_in_words() -> None:
    for kind in (Plan, LaunchPlan):
        assert all(f.metadata["doc"] for f in dataclasses.fields(kind))
