"""Exact kernels: of every default and of the sets, and what takes part where they are asked for."""

import itertools
from dataclasses import replace

import pytest

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import EXACT, DType, Workload
from fa_tune.families.selection import choose_configs

FORWARD = [f for f in families.all_families() if f.operation == "forward"]
SHAPES = ((2, 8, 2, 1024, 1024), (2, 8, 2, 1, 4096))


@pytest.mark.parametrize("d_head", [64, 128, 256])
@pytest.mark.parametrize("capability", [(8, 0), (9, 0)])
def test_where_there_is_a_default_there_is_an_exact_one(
    capability: tuple[int, int], d_head: int
) -> None:
    arch = limits(capability)
    for shape, dtype, causal in itertools.product(SHAPES, DType, (False, True)):
        fast = Workload(*shape, d_head, dtype, causal=causal)
        exact = replace(fast, accuracy=EXACT)
        found = families.defaults_for(exact, arch)
        of = [families.of(config) for config in families.defaults_for(fast, arch)]
        assert [families.of(config) for config in found] == of
        assert all(config.exact and families.fits(config, fast) for config in found)


@pytest.mark.parametrize("family", FORWARD, ids=lambda family: family.name)
def test_a_set_is_that_of_the_nearest_exact_configs(family: families.KernelFamily) -> None:
    arch, given = limits((9, 0)), ([DType.FP16], [(128, 0)], [family])
    fast, exact = (choose_configs("tune", *given, accuracy=word) for word in ("fast", EXACT))
    assert exact == list(dict.fromkeys(config.as_exact() for config in fast))
    assert all(config.exact for config in exact)
    assert any(families.constraints(config, arch) is None for config in exact)


def test_a_config_that_is_named_is_taken_as_it_is_or_refused() -> None:
    workload = Workload(*SHAPES[0], 128, DType.FP16, accuracy=EXACT)
    (fast, *_) = families.defaults_for(replace(workload, accuracy="fast"), limits((9, 0)))
    assert not families.fits(fast, workload)
    given = ([DType.FP16], [(128, 0)], FORWARD)
    with pytest.raises(InvalidConfig, match="not exact") as refused:
        choose_configs(str(fast), *given, accuracy=EXACT)
    assert str(fast.as_exact()) in str(refused.value)
    assert choose_configs(str(fast.as_exact()), *given, accuracy=EXACT) == [fast.as_exact()]


def test_backward_passes_and_caches_have_one_accuracy() -> None:
    plain = Workload(*SHAPES[1], 128, DType.FP16, accuracy=EXACT)
    assert plain.accuracy == EXACT
    assert replace(plain, op="backward").accuracy == "fast"
    assert replace(plain, cache_lengths="equal").accuracy == "fast"
