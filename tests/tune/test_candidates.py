"""Who competes beside the set: the default, and what the registry holds."""

from __future__ import annotations

import dataclasses

import pytest

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.options import SearchOptions, WorkloadOptions
from fa_tune.core.workload import DType, Workload
from fa_tune.families.selection import choose_configs, note_of_d_head, stated_config
from fa_tune.store.registry import file as store
from fa_tune.tune.candidates import workloads_for
from tests.tune.conftest import World, only, search
from tests.tune.fakes import FakeProfiler
from tests.tune.test_search import DEFAULT, FAST, OTHER, SLOW, known_times


@pytest.fixture
def world(world: World) -> World:
    world.profiler = FakeProfiler(known_times)
    return world


def test_a_smaller_set_does_not_replace_what_is_kept_by_something_slower(world: World) -> None:
    search(world)
    (wide,) = store.load(world.registry).entries
    world.configs = [SLOW.removeprefix("sm80:")]
    one = only(search(world))
    assert {a.subject for a in one.attempts} >= {DEFAULT, FAST, SLOW}
    assert one.decision.chosen.subject == FAST
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == FAST
    assert {r.variant for r in entry.runners_up} >= {r.variant for r in wide.runners_up}


def test_the_default_competes_with_a_set_that_lacks_it(world: World) -> None:
    world.configs = [SLOW.removeprefix("sm80:"), OTHER.removeprefix("sm80:")]
    one = only(search(world))
    assert one.decision.chosen.subject == DEFAULT


WITHOUT = "(FP16, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax"


def test_a_short_form_without_a_head_dimension_is_for_the_one_asked_for() -> None:
    assert stated_config(WITHOUT, (64,)).d_head == 64
    assert stated_config(WITHOUT.replace("64, 64,", "64, 64, 64,"), (128, 256)).d_head == 64
    with pytest.raises(InvalidConfig, match="states no head dimension"):
        stated_config(WITHOUT, (64, 128))
    config = stated_config(WITHOUT, (64,))
    assert "(FP16, 64, 64, 64, 4): async" in str(note_of_d_head(WITHOUT, config))
    assert note_of_d_head(config.short_form(), config) is None


def test_a_set_and_a_config_for_values_of_another_head_dimension() -> None:
    chosen = families.runnable(limits((9, 0)))
    found = choose_configs("fast", (DType.FP16,), ((192, 128),), chosen)
    assert {families.kind_of(c) for c in found} == {(DType.FP16, 192, 128, "forward")}
    workload = Workload(1, 1, 1, 64, 64, 192, DType.FP16, d_head_v=128)
    equal = dataclasses.replace(workload, d_head_v=0)
    assert all(families.fits(c, workload) and not families.fits(c, equal) for c in found)
    assert {families.kind_of(c) for c in families.defaults_for(workload, limits((9, 0)))} == {
        (DType.FP16, 192, 128, "forward")
    }
    text = families.variant(found[0]).config
    options = SearchOptions(WorkloadOptions(d_heads=(64,), dtypes=(DType.BF16,)), kernels=text)
    asked = workloads_for(options, [families.parse(text)])
    assert {(w.dtype, w.d_head, w.d_v) for w in asked} == {(DType.FP16, 192, 128)}
