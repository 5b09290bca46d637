"""A family that another one outruns is left out of a search, but not where it is needed."""

from dataclasses import replace

import pytest

from fa_tune import families
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.tune.plan import _without_outrun

SM80, SM90 = families.get("sm80"), families.get("sm90")
PLAIN = Workload(1, 2, 2, 512, 512, 128, DType.FP16)


def configs(*d_heads: int, prog: bool = False) -> list[Config]:
    found = [c for d in d_heads for c in SM80.configs("prog" if prog else "fast", d_head=d)]
    return (
        found if prog else [*found, *(c for d in d_heads for c in SM90.configs("fast", d_head=d))]
    )


def test_the_outrun_family_is_left_out() -> None:
    kept, left = _without_outrun((SM90, SM80), configs(64, 128), [PLAIN])
    assert kept == (SM90,)
    assert {families.of(c) for c in left} == {SM90}


@pytest.mark.parametrize(
    ("chosen", "some", "workloads"),
    [
        ((SM80,), configs(128, prog=True), [PLAIN]),  # the other one does not run on the device
        ((SM90, SM80), configs(128, prog=True), [PLAIN]),  # a set that it has not
        ((SM90, SM80), configs(128), [PLAIN, replace(PLAIN, cache_lengths="equal")]),  # not suited
    ],
)
def test_it_stays_where_it_is_needed(
    chosen: tuple[KernelFamily, ...], some: list[Config], workloads: list[Workload]
) -> None:
    assert _without_outrun(chosen, some, workloads) == (chosen, some)


def test_it_stays_for_heads_that_the_other_has_no_config_for() -> None:
    some = [c for c in configs(64, 128) if not (families.of(c) is SM90 and c.d_head == 64)]
    assert _without_outrun((SM90, SM80), some, [PLAIN]) == ((SM90, SM80), some)
