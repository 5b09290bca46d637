"""Launches in a row give the same bits, and 10,000 random workloads finish, twice, with the same
results: a barrier out of step would hang or let stale numbers through."""

from collections.abc import Sequence
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core import codec
from fa_tune.core.arch import ArchLimits, limits, parse_arch
from fa_tune.core.model import Outcome
from fa_tune.families.base import Config, KernelFamily
from fa_tune.workers.supervisor import run_items
from tests.gpu.cases import FORWARD_FAMILIES, Case, by_request, grid_configs, named, random_grid
from tests.gpu.conftest import Built, case_items, faults_of
from tests.gpu.test_sm90_kernels import paths

REPEATS = 50
PROBLEMS = 200  # each so many times in a row
STORM = 10_000  # workloads, each launched twice
AT_ONCE = 500  # of a storm, without a pause


def configs(family: KernelFamily, found: ArchLimits) -> Sequence[Config]:
    """Configs of a family that together take its kernels' branches."""
    return paths() if family.name == "sm90" else grid_configs(family, found)


def row(family: KernelFamily, found: ArchLimits) -> dict[BuildRequest, list[Case]]:
    """The problems to repeat, by kernel."""
    return by_request(random_grid(90, PROBLEMS, configs(family, found)), found)


def storm(family: KernelFamily, found: ArchLimits) -> list[Case]:
    """The random workloads."""
    return random_grid(91, STORM, configs(family, found))


@pytest.mark.gpu
class TestOnTheGpu:
    def test_launches_in_a_row_repeat_bitwise(
        self, family: KernelFamily, built: Built, arch: str
    ) -> None:
        """Each problem many times back to back into outputs filled with NaN."""
        items = case_items(built, row(family, parse_arch(arch)), repeats=REPEATS)
        assert not faults_of("judging_children:repeats", items, 120)

    def test_ten_thousand_random_workloads_finish_and_repeat(
        self, family: KernelFamily, built: Built, arch: str
    ) -> None:
        """Without a pause, one kernel after another, then again in another order."""
        cases = storm(family, parse_arch(arch))
        kernels = named(built(list(by_request(cases, parse_arch(arch)))))
        shared: dict[str, Any] = {"device": 0, "kernels": kernels}
        items = {
            f"{start}": {"cases": [codec.dump(c) for c in part], "seed": start}
            for start, part in _parts(cases)
        }
        handler = "tests.gpu.storm_child:handle"
        found = list(run_items(handler, shared, items, item_timeout_s=120))
        assert {r.item: r.reason for r in found if r.outcome is not Outcome.OK} == {}
        assert sum(r.value["launches"] for r in found) == 2 * STORM
        assert [name for r in found for name in r.value["differ"]] == []
        assert [name for r in found for name in r.value["nan"]] == []


def _parts(cases: Sequence[Case]) -> list[tuple[int, Sequence[Case]]]:
    return [(start, cases[start : start + AT_ONCE]) for start in range(0, len(cases), AT_ONCE)]


# Without a GPU ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORWARD_FAMILIES)
def test_the_storm_is_of_different_workloads_with_all_traits_on_every_config(name: str) -> None:
    family, hopper = families.get(name), limits((9, 0))
    cases = storm(family, hopper)
    assert len({c.workload for c in cases}) > STORM * 0.99
    requests = by_request(cases, hopper)
    assert {r.variant for r in requests} == {c.variant for c in cases}
    assert len({c.variant for c in cases}) == len(configs(family, hopper))
    traits = {r.traits for r in requests}
    assert traits >= {"ragged", "causal+ragged", "ragged+lse", "causal+ragged+lse"}
    assert name == "decode" or traits >= {"plain", "causal"}, "decode kernels are always ragged"
    assert sum(len(part) for _, part in _parts(cases)) == STORM
