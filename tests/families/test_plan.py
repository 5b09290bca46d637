"""Plans: what the core knows of a kernel."""

import dataclasses
import itertools
import re
from functools import cache

import pytest

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.plan import Plan, Portability, compiled_for
from fa_tune.operations.traits import Traits

H200 = limits((9, 0))


@cache
def configs() -> list[Config]:
    found = []
    for family in families.all_families():
        sets = [family.configs(key, d_head=d) for d in (64, 128) for key in ("all", "fast")]
        found += [c for c in itertools.chain(*sets) if family.constraints(c, H200) is None]
    return found


@pytest.mark.parametrize("family", families.all_families(), ids=lambda f: f.name)
def test_each_config_of_a_set_has_a_plan(family: KernelFamily) -> None:
    for config in configs():
        if families.of(config) is not family:
            continue
        call = family.plan(config, "causal+lse", "sm_90a")
        assert len(call.launches) == len(family.name_expressions(config, "causal+lse"))
        # Of kernels that CTAs share the keys of, one serves all lengths.
        any_length = call.launches[0].share_keys > 0
        whole = (1, 1) if any_length else family.whole_lengths(config)
        assert (call.plan.block_q, call.plan.block_kv) == whole
        assert (call.plan.causal, call.plan.ragged, call.plan.lse) == (1, 0, 1)
        assert (call.plan.dtype, call.plan.d_head) == (config.dtype, config.d_head)


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
