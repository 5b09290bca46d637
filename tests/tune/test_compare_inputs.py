"""A choice is not taken that is behind the default on other inputs."""

from __future__ import annotations

import random

import pytest

from fa_tune.commands.views.registry_prose import data_dependence
from fa_tune.core.comparison import OnInputs
from fa_tune.core.inputs import BUILT_IN, InputSpec
from fa_tune.core.model import Outcome
from fa_tune.core.stats import Interval, Ratio
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.search.data_dependence import slowdown
from fa_tune.search.decide import Rule
from fa_tune.store.registry import file as store
from fa_tune.tune import compare_inputs
from fa_tune.tune.compare_inputs import MAX_CONTENDERS
from fa_tune.tune.results import SearchResult
from tests.tune import fakes
from tests.tune.conftest import FakeComparer, World, only, search
from tests.tune.fakes import FakeProfiler, Stages

DEFAULT, FAST, NEXT, SLOW = fakes.keys(4)
TIMES = {DEFAULT: 2e-3, FAST: 1e-3, NEXT: 1.5e-3, SLOW: 3e-3, "ref:fa2": 2e-3, "ref:cudnn": 2e-3}
KEY = benchmark_workload(1024, 128, DType.FP16).key
NAMES = [str(spec) for spec in BUILT_IN]


@pytest.fixture
def world(world: World) -> World:
    world.profiler = FakeProfiler(lambda subject, _: TIMES[subject])
    return world


def chosen(result: SearchResult) -> tuple[str, Rule]:
    decision = only(result).decision
    return decision.chosen.subject, decision.rule


def test_the_choice_and_what_may_follow_meet_the_default_on_all_inputs(world: World) -> None:
    found = search(world, 1024)
    assert chosen(found) == (FAST, Rule.CLEAR_WINNER)
    assert world.comparer.asked == [(KEY, name, (DEFAULT, FAST, NEXT)) for name in NAMES]
    figures = only(found).on_inputs
    assert [f.inputs for f in figures[FAST]] == NAMES
    assert all(f.to_default is None for f in figures[DEFAULT])
    (entry,) = store.load(world.registry).entries
    assert entry.inputs == "trained"
    assert list(entry.per_inputs) == NAMES
    ratio = entry.per_inputs["falling"].ratio_to_default
    assert ratio.value == pytest.approx(0.97)


@pytest.mark.parametrize("inputs", NAMES)
def test_a_choice_that_is_behind_on_any_inputs_gives_way_to_the_next(
    world: World, inputs: str
) -> None:
    world.comparer.ratio[FAST, inputs] = 1.05
    found = search(world, 1024)
    assert chosen(found) == (NEXT, Rule.BEHIND_ON_INPUTS)
    decision = only(found).decision
    assert f"takes 5.00 % more time than the default on {inputs} inputs" in decision.sentence
    assert "takes 25.00 % less time than the default" in decision.sentence
    assert decision.to_default.value == pytest.approx(0.75)
    assert any(inputs in warning for warning in world.progress.warnings)
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == NEXT
    assert entry.reason == decision.sentence
    assert entry.confirmation is not None, "it is what the A/B test is about"
    assert entry.confirmation.variant.key == NEXT


def test_where_all_are_behind_the_default_stays(world: World) -> None:
    world.comparer.ratio |= {(FAST, "falling"): 1.05, (NEXT, "sink"): 1.021}
    found = search(world, 1024)
    assert chosen(found) == (DEFAULT, Rule.BEHIND_ON_INPUTS)
    (entry,) = store.load(world.registry).entries
    assert (entry.chosen.key, entry.confirmation) == (DEFAULT, None)
    assert [f.ratio_to_default for f in entry.per_inputs.values()] == [None] * len(NAMES)
    assert world.confirmer.asked == []


def test_two_percent_are_allowed(world: World) -> None:
    world.comparer.ratio[FAST, "falling"] = 1.02
    assert chosen(search(world, 1024))[0] == FAST


def test_a_default_that_was_chosen_is_measured_alone(world: World) -> None:
    world.profiler = FakeProfiler(lambda subject, _: 1e-3 if subject == DEFAULT else 2e-3)
    assert chosen(search(world, 1024)) == (DEFAULT, Rule.DEFAULT_IS_LEADER)
    assert {subjects for _, _, subjects in world.comparer.asked} == {(DEFAULT,)}


def test_few_are_compared(world: World) -> None:
    world.configs = fakes.configs(12)
    world.profiler = FakeProfiler(lambda subject, _: 2e-3 if subject == DEFAULT else 1e-3)
    search(world, 1024)
    assert {len(subjects) for _, _, subjects in world.comparer.asked} == {1 + MAX_CONTENDERS}


def test_a_search_on_other_inputs_compares_these_as_well(world: World) -> None:
    spec = InputSpec.parse("peaked:4")
    search(world, 1024, inputs=spec)
    assert [inputs for _, inputs, _ in world.comparer.asked] == ["peaked:4", *NAMES]
    (entry,) = store.load(world.registry).entries
    assert entry.inputs == "peaked:4"


def test_nothing_is_compared_twice(world: World) -> None:
    world.comparer.ratio[FAST, "falling"] = 1.05
    first = search(world, 1024)
    world.comparer = FakeComparer()
    world.progress = Stages()
    again = search(world, 1024)
    assert world.comparer.asked == []
    assert chosen(again) == chosen(first) == (NEXT, Rule.BEHIND_ON_INPUTS)
    assert only(again).on_inputs == only(first).on_inputs


def test_attempts_on_other_inputs_never_mix(world: World) -> None:
    search(world, 1024)
    measured = len(world.profiler.measured)
    search(world, 1024, inputs=InputSpec.parse("falling"))
    assert len(world.profiler.measured) == 2 * measured
    assert len({p.inputs for p in world.profiler.plans}) == 2


def test_what_cannot_be_compared_is_a_warning(world: World) -> None:
    world.comparer.broken["sink"] = (Outcome.CRASHED, "illegal address")
    found = search(world, 1024)
    assert chosen(found)[0] == FAST
    assert "sink" not in [f.inputs for f in only(found).on_inputs[FAST]]
    assert any("not compared: crashed: illegal address" in w for w in world.progress.warnings)


COST = {"trained": 1.04, "falling": 1.3, "sink": 0.98}


@pytest.mark.parametrize("seed", range(4))
def test_the_clock_of_each_comparison_is_not_in_what_inputs_cost(world: World, seed: int) -> None:
    """Items run one after another: the clock of each is another."""
    draw = random.Random(seed)
    world.comparer.cost = COST
    world.comparer.clock = {name: draw.uniform(0.8, 1.2) for name in NAMES}
    world.comparer.ratio = {(FAST, "falling"): 0.99, (FAST, "trained"): 0.9}
    found = search(world, 1024)
    of_default = {name: COST.get(name, 1.0) / COST["trained"] for name in NAMES}
    to_default = {name: world.comparer.ratio.get((FAST, name), 0.97) / 0.9 for name in NAMES}
    for subject, costs in (
        (DEFAULT, of_default),
        (FAST, {name: of_default[name] * to_default[name] for name in NAMES}),
    ):
        told = {f.inputs: f.to_own_inputs for f in only(found).on_inputs[subject]}
        assert told == pytest.approx(costs, rel=1e-5)
        assert told["trained"] == 1.0
    (entry,) = store.load(world.registry).entries
    kept = entry.per_inputs["falling"].ratio_to_own_inputs
    assert kept == pytest.approx(1.3 / 1.04 * 0.99 / 0.9, rel=1e-5)
    (sentence,) = data_dependence(entry.on_inputs, entry.inputs)[1:]
    assert sentence == "It takes most time on falling inputs, 1.38 times that on trained ones."


def test_errors_are_kept_for_each_kind_of_inputs(world: World) -> None:
    world.comparer.errors = {(FAST, "trained"): 1.4, (FAST, "normal"): 1.03, (DEFAULT, "sink"): 2.0}
    for _ in range(2):  # the second time from the journal
        found = only(search(world, 1024))
        told = {f.inputs: f.error for f in found.on_inputs[FAST] if f.error is not None}
        assert told == {"trained": 1.4, "normal": 1.03}
    (entry,) = store.load(world.registry).entries
    assert entry.per_inputs["trained"].error_to_fa2 == 1.4
    assert {f.inputs: f.error for f in entry.on_inputs}["normal"] == 1.03


def test_a_search_on_other_inputs_pairs_with_these(world: World) -> None:
    """What stands beside samples on trained inputs is no evidence for falling ones."""
    world.comparer.cost = COST
    search(world, 1024)
    asked = len(world.comparer.asked)
    found = search(world, 1024, inputs=InputSpec.parse("falling"))
    assert len(world.comparer.asked) == asked + len(NAMES)
    told = {f.inputs: f.to_own_inputs for f in only(found).on_inputs[DEFAULT]}
    assert told["falling"] == 1.0
    assert told["trained"] == pytest.approx(1.04 / 1.3, rel=1e-5)


def test_without_the_searchs_own_inputs_no_cost_is_known(world: World) -> None:
    world.comparer.broken["trained"] = (Outcome.CRASHED, "illegal address")
    figures = only(search(world, 1024)).on_inputs[FAST]
    assert {f.to_own_inputs for f in figures} == {None}
    assert slowdown(figures) is None


def test_recorded_figures_are_told_beside_todays_default() -> None:
    """The recording's default was `old`; `new` has become it since."""
    old = OnInputs("falling", 10.0, None)
    new = OnInputs("falling", 9.0, Ratio(0.9, Interval(0.89, 0.91)))
    other = OnInputs("falling", 9.9, Ratio(0.99, Interval(0.98, 1.0)))
    figures = {"old": (old,), "new": (new,), "other": (other,)}
    assert compare_inputs._against("old", figures) == figures
    found = compare_inputs._against("new", figures)
    assert found["new"][0].to_default is None
    for subject, ratio in (("old", 1 / 0.9), ("other", 1.1)):
        told = found[subject][0].to_default
        assert told.value == pytest.approx(ratio)
        assert told.interval is None
    unknown = compare_inputs._against("unmeasured", figures)
    assert all(one.to_default is None for (one,) in unknown.values())
    figures = [OnInputs("normal", 1e-3, None), OnInputs("falling", 2e-3, None)]
    assert data_dependence(figures, "normal") == []
