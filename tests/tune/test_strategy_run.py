"""Searches that need not measure everything: budgets, resuming, the final, the audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Outcome
from fa_tune.core.workload import Workload
from fa_tune.search.strategies import budget
from fa_tune.tune import flow
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.strategy_run import _best
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import FakeProfiler, Time, by_hash


def searched(world: World, **changes: Any) -> tuple[SearchResult, WorkloadResult]:
    options = world.options(1024, references=(), **changes)
    result = flow.search(options, world.progress)
    (one,) = result.results
    return result, one


def events(time: Time = by_hash, **changes: Any) -> FakeProfiler:
    """Five samples in the final, so three for whoever is proposed."""
    return FakeProfiler(time, method="events", default_runs=5, **changes)


def scouted(profiler: FakeProfiler, runs: int) -> list[str]:
    """The subjects of all plans with so many runs, in order."""
    return [s for s, _, n in profiler.measured if n == runs]


@pytest.fixture(autouse=True)
def _twenty(world: World) -> None:
    world.configs = fakes.configs(20)
    world.profiler = events()


@pytest.mark.parametrize("strategy", ["exhaustive", "random", "learned"])
def test_a_budget_of_measurements_is_kept(world: World, strategy: str) -> None:
    _, one = searched(world, strategy=strategy, measurements=9)
    assert len(scouted(world.profiler, 3)) == len(set(scouted(world.profiler, 3))) == 9
    assert (one.exploration.configs, one.exploration.scouted) == (20, 9)
    assert {a.subject for a in one.attempts} == set(scouted(world.profiler, 3))
    assert f"{strategy} measured 9 of 20 configs" in one.exploration.sentence


def test_without_strategy_and_budget_everything_is_measured_at_once(world: World) -> None:
    _, one = searched(world)
    assert one.exploration is None
    assert len(world.profiler.plans) == 1
    assert len(one.attempts) == 20


def test_the_final_has_the_fastest_and_the_default_side_by_side(world: World) -> None:
    _, one = searched(world, strategy="random", measurements=12)
    final = world.profiler.plans[-1]
    assert final.runs == 5
    assert fakes.keys(1)[0] in final.artifacts
    workload = final.workload
    times = {s: by_hash(s, workload) for s in scouted(world.profiler, 3)}
    best = min(times.values())
    within = {s for s, t in times.items() if t <= 1.05 * best}
    assert set(final.artifacts) == within | {fakes.keys(1)[0]} & set(times)
    assert {s.subject for s in one.decision.standings} == set(final.artifacts)
    assert all(s.n == 5 for s in one.decision.standings)


def test_finalists_are_within_five_per_cent_and_eight_at_most() -> None:
    assert _best({"c": 1.0500001, "b": 1.05, "a": 1.0}) == ["a", "b"]
    assert _best(dict.fromkeys("jihgfedcba", 1.0)) == list("abcdefgh")
    assert _best({}) == []


def test_the_default_is_measured_first_whatever_the_strategy(world: World) -> None:
    for strategy in ("learned", "exhaustive", "random"):
        world.profiler = events()
        searched(world, strategy=strategy, measurements=4, resume=False)
        assert scouted(world.profiler, 3)[0] == fakes.keys(1)[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_random_search_has_the_default_in_its_final(world: World, seed: int) -> None:
    _, one = searched(world, strategy="random", measurements=1, seed=seed)
    assert fakes.keys(1)[0] in world.profiler.plans[-1].artifacts
    assert one.decision.chosen.subject == fakes.keys(1)[0]


@pytest.mark.parametrize("strategy", ["random", "learned"])
@pytest.mark.parametrize("killed_after", [1, 6, 10, 13])
def test_a_killed_search_goes_on_with_the_same_proposals(
    world: World, tmp_path: Path, strategy: str, killed_after: int
) -> None:
    def search_in(folder: str, profiler: FakeProfiler) -> WorkloadResult:
        # A registry each: what it holds competes, and is measured first.
        world.profiler = profiler
        places = {"cache_dir": tmp_path / folder, "registry": tmp_path / f"{folder}.json"}
        return searched(world, strategy=strategy, measurements=12, **places)[1]

    whole, killed, rest = events(), events(interrupt_after=killed_after), events()
    undisturbed = search_in("a", whole)
    with pytest.raises(KeyboardInterrupt):
        search_in("b", killed)
    resumed = search_in("b", rest)
    first, again = scouted(killed, 3)[:killed_after], scouted(rest, 3)
    assert len(scouted(whole, 3)) == 12
    assert first + again == scouted(whole, 3)
    assert resumed.decision == undisturbed.decision
    assert resumed.exploration == undisturbed.exploration


def test_a_failure_costs_a_measurement_and_is_reported(world: World) -> None:
    bad = fakes.keys(20)[3]
    world.profiler = events(failures={bad: (Outcome.CRASHED, "boom")})
    _, one = searched(world, strategy="exhaustive", measurements=8)
    (attempt,) = [a for a in one.attempts if a.subject == bad]
    assert (attempt.outcome, attempt.reason) == (Outcome.CRASHED, "boom")
    assert (one.exploration.scouted, one.exploration.failed) == (8, 1)


@pytest.mark.parametrize(("strategy", "compiled"), [("random", 6), ("learned", 20)])
def test_only_what_is_proposed_is_verified_and_compiled_unless_facts_are_asked_for(
    world: World, strategy: str, compiled: int
) -> None:
    searched(world, strategy=strategy, measurements=6)
    assert len({r.variant.key for r in world.compiler.requests}) == compiled
    assert len(world.verifier.verified) == 6


def test_wrong_results_are_never_timed(world: World) -> None:
    bad = fakes.keys(2)[1]
    world.verifier.wrong = {bad}
    _, one = searched(world, strategy="learned", measurements=20)
    assert bad not in {s for s, _, _ in world.profiler.measured}
    (attempt,) = [a for a in one.attempts if a.subject == bad]
    assert attempt.outcome is Outcome.WRONG_RESULT
    assert one.decision is not None


def test_what_does_not_compile_costs_learned_nothing(world: World) -> None:
    world.compiler.refused = {fakes.keys(3)[2]: "no"}
    _, one = searched(world, strategy="learned", measurements=19)
    assert (one.exploration.configs, one.exploration.scouted) == (19, 19)
    assert [a.reason for a in one.attempts if a.outcome is Outcome.COMPILE_FAILED] == ["no"]


def test_the_audit_finds_what_the_strategy_missed(world: World) -> None:
    hidden = fakes.keys(20)[19]

    def time(subject: str, workload: Workload) -> float:
        return 0.5e-3 if subject == hidden else by_hash(subject, workload)

    world.profiler = events(time)
    _, one = searched(world, strategy="exhaustive", measurements=3, audit=17)
    audit = one.exploration.audit
    assert (audit.skipped, audit.measured, audit.fastest) == (17, 17, hidden)
    assert audit.regret > 0.5
    assert one.decision.chosen.subject == hidden
    world.profiler = events()
    _, one = searched(world, strategy="exhaustive", audit=5, measurements=20, resume=False)
    assert one.exploration.audit.sentence == "nothing was skipped"


def test_seconds_end_the_scouting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 10))
    spend = budget.spend
    monkeypatch.setattr(
        "fa_tune.tune.strategy_run.spend",
        lambda *a, **k: spend(*a, **k, clock=lambda: float(next(now))),
    )
    _, one = searched(world, strategy="random", seconds=25.0)
    assert one.exploration.scouted == 8  # two batches, begun at 10 and 20 seconds


def test_under_ncu_a_finalist_s_first_sample_is_the_scout_s(world: World) -> None:
    world.profiler = FakeProfiler(method="ncu", default_runs=3)
    result, one = searched(world, strategy="random", measurements=10)
    assert result.reused == 0
    assert one.decision.leader.n == 3
    leader = [n for s, _, n in world.profiler.measured if s == one.decision.leader.subject]
    assert leader == [1, 2]


def test_what_scouts_found_stands_for_no_measurement(world: World) -> None:
    """Three samples in batches of four are no measurement beside the leader."""
    searched(world, strategy="random", measurements=20)
    assert len(scouted(world.profiler, 3)) == 20
    world.profiler = events()
    result, _ = searched(world, runs=3)
    assert result.reused == 0
    assert len(scouted(world.profiler, 3)) == 20


def test_one_sample_each_is_taken_again_in_the_final(world: World) -> None:
    _, one = searched(world, strategy="random", measurements=12, runs=1)
    final = world.profiler.plans[-1]
    assert set(final.artifacts) == {s.subject for s in one.decision.standings}


def test_another_search_of_the_set_measures_the_default_beside_what_is_new(world: World) -> None:
    default = fakes.keys(1)[0]
    searched(world, strategy="exhaustive", measurements=4)
    world.profiler = events()
    searched(world)
    (plan,) = world.profiler.plans
    assert default in plan.artifacts
    world.profiler = events()
    searched(world)
    assert world.profiler.plans == []


def test_nothing_that_compiles_is_one_line(world: World) -> None:
    world.compiler.refused = dict.fromkeys(fakes.keys(20), "no such register")
    with pytest.raises(NoUsableVariant, match=r"nothing compiles for b16_.*: no such register"):
        searched(world, strategy="learned", measurements=5)
