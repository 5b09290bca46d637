"""The GPU tests' problems are those they claim to be; needs no GPU."""

import itertools
from collections import Counter

import pytest

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core import codec
from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import MASKS, DType
from fa_tune.families.base import Config
from fa_tune.families.sm90.defaults import default_config
from fa_tune.operations.traits import Traits
from tests.gpu.cases import (
    FORWARD_FAMILIES,
    GROUPS,
    GROWTHS,
    LAYOUTS,
    LONGEST,
    Case,
    awkward_cases,
    by_request,
    fa_forward_cases,
    grid_configs,
    random_grid,
    small_workloads,
)
from tests.gpu.test_grid import COUNT, FIXED_SEED
from tests.tools.required import ALL_D_HEADS, code_path_sample

LIMITS = parse_arch("sm_90")
SM80 = families.get("sm80")


@pytest.fixture(scope="module")
def configs() -> list[Config]:
    return grid_configs(SM80, LIMITS)


@pytest.fixture(scope="module")
def grid(configs: list[Config]) -> list[Case]:
    return random_grid(FIXED_SEED, COUNT, configs)


def test_the_grid_is_the_same_for_one_seed_and_another_for_another(
    configs: list[Config], grid: list[Case]
) -> None:
    assert random_grid(FIXED_SEED, COUNT, configs) == grid
    other = random_grid(FIXED_SEED + 1, COUNT, configs)
    assert len({c.workload for c in other} & {c.workload for c in grid}) < COUNT / 50
    assert all(codec.load(Case, codec.dump(case)) == case for case in grid[:40])


def test_the_grid_covers_what_it_is_to_cover(grid: list[Case]) -> None:
    workloads = [c.workload for c in grid]
    assert len(set(workloads)) >= 500
    per_kind = {(w.d_head, w.dtype, w.mask) for w in workloads}
    assert len(per_kind) == len(ALL_D_HEADS) * len(DType) * len(MASKS)
    assert {w.heads // w.kv_heads for w in workloads} == set(GROUPS)
    assert {c.layout for c in grid} == set(LAYOUTS)
    for kind in (False, True):  # queries that see nothing, and keys that are seen by all
        assert any(w.bottom_right and (w.seq_len_q > w.seq_len_kv) == kind for w in workloads)
    blind = [w for w in workloads if w.causal and w.diagonal < 0]
    assert len(blind) > 20, "rows that see nothing"
    assert any(w.lse for w in blind)
    lengths = [n for w in workloads for n in (w.seq_len_q, w.seq_len_kv)]
    assert min(lengths) == 1
    assert 4000 < max(lengths) <= LONGEST
    assert sum((n + 1) % 32 <= 2 for n in lengths) > len(lengths) / 3, "at the edge of a block"
    assert sum(n % 2 for n in lengths) > len(lengths) / 3
    traits = {request.traits for request in by_request(grid, LIMITS)}
    assert len(traits) == 8, "every combination of causal, ragged and lse"
    growths = Counter(c.growth for c in grid)
    assert all(growths[g] > COUNT / 8 for g in GROWTHS)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_every_d_head_and_type_has_its_default_and_others(arch: str) -> None:
    limits = parse_arch(arch)
    configs = grid_configs(SM80, limits)
    assert all(SM80.constraints(c, limits) is None for c in configs)
    for dtype, d_head in itertools.product(DType, ALL_D_HEADS):
        mine = [c for c in configs if (c.dtype, c.d_head) == (dtype, d_head)]
        assert sum(c.ping_pong for c in mine) == (arch == "sm_90")
        assert mine[0] == SM80.default_config(d_head, dtype)
        assert len({families.blocks(c) for c in mine}) > 1


@pytest.mark.parametrize("traits", ["plain", "lse", "ragged", "causal", "causal+ragged+lse"])
@pytest.mark.parametrize("config", [SM80.example, str(default_config(128, DType.BF16))])
def test_awkward_cases_are_of_their_kernel(config: str, traits: str) -> None:
    found = families.parse(config)
    variant = families.variant(found)
    cases = awkward_cases(BuildRequest(variant, traits, "sm_90"))
    of_traits = {families.of(found).traits(found, c.workload) for c in cases}
    ragged = traits.replace("causal+ragged", "causal").removeprefix("ragged") or "plain"
    assert of_traits == {traits, ragged}, "whole lengths need no kernel for ragged ones"
    blind = [c for c in cases if c.workload.causal and c.workload.seq_len_q > c.workload.seq_len_kv]
    assert any(c.workload.bottom_right for c in blind) == ("causal" in traits)
    assert {c.growth for c in cases} >= {None, 12.0}


def test_small_problems_have_the_traits_and_let_every_ring_turn() -> None:
    for config, traits in code_path_sample(ALL_D_HEADS):
        check_small_problems(config, traits)
    for d_head in (64, 256):
        check_small_problems(default_config(d_head, DType.FP16), Traits.parse("causal+ragged"))


def check_small_problems(config: Config, traits: Traits) -> None:
    family = families.of(config)
    b_r, b_c = families.blocks(config)
    found = small_workloads(families.variant_of(family, config), str(traits))
    of_traits = [family.traits(config, w) for w in found]
    assert set(of_traits) == {str(traits)}
    tiles = [-(-w.seq_len_q // b_r) * w.batch * w.heads for w in found]
    assert max(tiles) >= 12
    assert max(w.seq_len_kv for w in found) >= 5 * b_c
    assert sum(w.batch * w.heads * w.seq_len_q * w.seq_len_kv for w in found) < 40e6
    assert {w.mask for w in found} == ({"causal", "causal_br"} if traits.causal else {"full"})


@pytest.mark.parametrize("name", FORWARD_FAMILIES)
def test_every_family_has_a_grid_on_a_device_that_it_runs_on(name: str) -> None:
    family = families.get(name)
    configs = grid_configs(family, LIMITS)
    assert {(c.dtype, c.d_head) for c in configs} >= {(t, 128) for t in DType}
    assert all(family.constraints(c, LIMITS) is None for c in configs)
    grid = random_grid(FIXED_SEED, COUNT, configs)
    assert {c.variant for c in grid} == {families.variant(c) for c in configs}
    assert {r.arch for r in by_request(grid, LIMITS)} == {family.compile_arch(LIMITS)}
    cases = fa_forward_cases(family, LIMITS)
    assert {c.workload.d_head for c in cases} >= {128}
