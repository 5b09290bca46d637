"""Who competes beside the set: the default, and what the registry holds."""

from __future__ import annotations

from fa_tune.core.workload import Workload
from fa_tune.store.registry import file as store
from fa_tune.tune.flow import search as run_search
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import FakeProfiler

DEFAULT, FAST, SLOW, OTHER = fakes.keys(4)
TIMES = {DEFAULT: 2e-3, FAST: 1e-3, SLOW: 3e-3, OTHER: 4e-3, "ref:fa2": 1.5e-3, "ref:cudnn": 8e-4}


def known_times(subject: str, _: Workload) -> float:
    return TIMES[subject]


def test_a_smaller_set_does_not_replace_what_is_kept_by_something_slower(world: World) -> None:
    world.profiler = FakeProfiler(known_times)
    run_search(world.options(), world.progress)
    world.configs = [SLOW.removeprefix("sm80:")]
    world.profiler = FakeProfiler(known_times)
    (one,) = run_search(world.options(), world.progress).results
    assert {a.subject for a in one.attempts} >= {DEFAULT, FAST, SLOW}
    assert one.decision is not None
    assert one.decision.chosen.subject == FAST
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == FAST


def test_the_default_competes_with_a_set_that_lacks_it(world: World) -> None:
    world.configs = [SLOW.removeprefix("sm80:"), OTHER.removeprefix("sm80:")]
    world.profiler = FakeProfiler(known_times)
    (one,) = run_search(world.options(), world.progress).results
    assert one.decision is not None
    assert one.decision.chosen.subject == DEFAULT
