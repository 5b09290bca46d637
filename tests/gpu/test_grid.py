"""Kernels are right on a randomised grid of workloads and on those of the flash-attention
project's forward test: error at most twice that of the same computation in torch's own
precision, both against fp64; log-sum-exp; nothing written beside; bitwise repeatable.

The grid has one draw with a fixed seed and one with a seed of its own per run, which every
failure names: `FA_TUNE_GRID_SEED=… pytest tests/gpu/test_grid.py` repeats it.
"""

import os
import random

import pytest

from fa_tune.core.arch import ArchLimits, parse_arch
from fa_tune.families.base import KernelFamily
from tests.gpu.cases import (
    Case,
    by_request,
    fa_forward_cases,
    grid_configs,
    mixed_grid,
    pair_configs,
    random_grid,
)
from tests.gpu.conftest import Built, case_items, faults_of

FIXED_SEED = 20240229
COUNT = 600  # workloads of each draw
PAIRS_COUNT = 500  # of those with V of another head dimension
SEED_VARIABLE = "FA_TUNE_GRID_SEED"


def fresh_seed() -> int:
    """Another one in every run, unless the variable says which."""
    given = os.environ.get(SEED_VARIABLE)
    return int(given) if given else random.SystemRandom().randrange(2**31)


def drawn(name: str, family: KernelFamily, limits: ArchLimits, seed: int) -> list[Case]:
    """The cases of a grid: drawn with a fixed seed or this one; with V of another head dimension;
    with windows, sinks, caps and slopes; the flash-attention project's forward test."""
    match name:
        case "fixed":
            return random_grid(FIXED_SEED, COUNT, grid_configs(family, limits))
        case "fresh":
            return random_grid(seed, COUNT, grid_configs(family, limits))
        case "pairs":
            return random_grid(seed, PAIRS_COUNT, pair_configs(family, limits))
        case "mixed":
            return mixed_grid(FIXED_SEED, COUNT, grid_configs(family, limits))
        case _:
            return fa_forward_cases(family, limits)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["fixed", "fresh", "pairs", "mixed", "fa_forward"])
def test_every_case_of_a_grid_is_right(
    name: str, family: KernelFamily, built: Built, arch: str
) -> None:
    limits, seed = parse_arch(arch), fresh_seed()
    cases = drawn(name, family, limits, seed)
    items = case_items(built, by_request(dict.fromkeys(cases), limits))
    wrong = faults_of("judging_children:cases", items, 120)
    assert not wrong, f"{SEED_VARIABLE}={seed} draws them again\n{wrong}"


def test_the_seed_is_given_or_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SEED_VARIABLE, raising=False)
    assert len({fresh_seed() for _ in range(20)}) == 20
    monkeypatch.setenv(SEED_VARIABLE, "17")
    assert fresh_seed() == 17
