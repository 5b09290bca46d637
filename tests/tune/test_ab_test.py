"""The choice against the default once more, after the search."""

from __future__ import annotations

import pytest

from fa_tune import libraries
from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.search.decide import Rule
from fa_tune.store.registry import file as store
from tests.tune.conftest import World, only, search
from tests.tune.fakes import FakeProfiler, Stages
from tests.tune.test_search import DEFAULT, FAST, known_times

KEY = benchmark_workload(1024, 128, DType.FP16).key


@pytest.fixture
def world(world: World) -> World:
    world.profiler = FakeProfiler(known_times)
    return world


def test_a_choice_that_holds_is_kept_with_what_confirmed_it(world: World) -> None:
    one = only(search(world, 1024))
    assert (one.confirmation.chosen, one.confirmation.default) == (FAST, DEFAULT)
    assert one.confirmation.ratio.value == pytest.approx(0.97)
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == FAST
    found = entry.confirmation
    assert (found.variant.key, found.default.key, found.n, found.upheld) == (
        FAST,
        DEFAULT,
        12,
        True,
    )
    (asked,) = world.confirmer.asked  # the registry that its worker reads leads to the choice
    assert (asked["registry_entries"], asked["defaults_entries"]) == ([FAST], [])
    assert asked["handler"] == "fa_tune.gpu.jobs.ab_test:handle"
    assert (asked["chosen"], asked["default"], asked["device"]) == (FAST, DEFAULT, 0)
    assert asked["seed"] != 0, "other inputs than the search had"


@pytest.mark.parametrize("ratio", [1.0, 1.002, 1.3])
def test_a_choice_that_gains_nothing_gives_way_to_the_default(world: World, ratio: float) -> None:
    world.confirmer.ratio[KEY] = ratio
    one = only(search(world, 1024))
    assert one.decision.rule is Rule.CONTRADICTED
    assert one.decision.chosen.subject == DEFAULT
    assert one.decision.to_default.value == 1.0
    assert one.decision.to_references["ref:fa2"].value == pytest.approx(2 / 1.5)
    assert "run as a program runs them" in one.decision.sentence
    assert any(FAST in text for text in world.progress.warnings)
    (entry,) = store.load(world.registry).entries
    assert entry.chosen.key == DEFAULT
    assert not entry.confirmation.upheld
    assert entry.confirmation.variant.key == FAST


def test_the_default_needs_no_confirmation(world: World) -> None:
    world.profiler = FakeProfiler(lambda subject, _: 1e-4 if subject == DEFAULT else 1e-3)
    assert only(search(world, 1024)).confirmation is None
    assert world.confirmer.asked == []


def test_it_can_be_left_out(world: World) -> None:
    assert only(search(world, 1024, confirm=False)).confirmation is None
    assert world.comparer.asked == []
    assert world.confirmer.asked == []


def test_one_process_takes_all_workloads_and_nothing_is_compared_twice(world: World) -> None:
    first = search(world, 1024, 2048)
    assert [a["workload"] for a in world.confirmer.asked] == [
        one.workload.key for one in first.results
    ]
    world.profiler = FakeProfiler(known_times)
    world.progress = Stages()
    second = search(world, 1024, 2048)
    assert len(world.confirmer.asked) == 2
    assert [r.confirmation for r in second.results] == [r.confirmation for r in first.results]
    assert (second.measured, second.reused) == (0, first.measured)
    world.profiler = FakeProfiler(known_times)
    search(world, 1024, 2048, resume=False)
    assert len(world.confirmer.asked) == 4


def test_a_comparison_that_fails_leaves_the_choice_unconfirmed(world: World) -> None:
    world.confirmer.broken[KEY] = (Outcome.CRASHED, "out of GPU memory")
    one = only(search(world, 1024))
    assert one.decision.chosen.subject == FAST
    assert one.confirmation is None
    assert any("not confirmed" in text for text in world.progress.warnings)
    (entry,) = store.load(world.registry).entries
    assert entry.confirmation is None


def test_a_worker_that_cannot_start_is_a_warning(world: World) -> None:
    world.confirmer.error = ToolMissing("no CuPy")
    assert only(search(world, 1024)).confirmation is None
    assert "the choices were not confirmed: no CuPy" in world.progress.warnings


def test_strategies_are_confirmed_too(world: World) -> None:
    one = only(search(world, 1024, strategy="random", measurements=4))
    assert one.exploration is not None
    assert one.confirmation is not None


# Libraries among the candidates


@pytest.fixture
def beaten(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """cuDNN and FlashAttention 2 are faster than all of ours."""
    faster = {"ref:cudnn": 0.5e-4, "ref:fa2": 0.6e-4}
    world.profiler = FakeProfiler(lambda s, w: faster[s] if s in faster else known_times(s, w))
    monkeypatch.setattr(libraries, "installed", lambda name: f"{name} 1.2.3")
    return world


def test_the_fastest_library_is_named_beside_our_choice(beaten: World) -> None:
    only(search(beaten, 1024))
    (entry,) = store.load(beaten.registry).entries
    assert entry.served is None, "which nobody asked for"
    assert [a["chosen"] for a in beaten.confirmer.asked] == [FAST]
    only(search(beaten, 1024, candidates="all"))
    asked = beaten.confirmer.asked[-1]
    assert (asked["chosen"], asked["default"]) == ("ref:cudnn", FAST)
    (entry,) = store.load(beaten.registry).entries
    assert entry.chosen.key == FAST, "which runs where cuDNN is gone"
    assert entry.served is not None
    assert (entry.served.library, entry.served.packages) == ("cudnn", "cudnn 1.2.3")
    assert (entry.served.ratio.value, entry.served.n) == (pytest.approx(0.97), 12)


def test_a_library_that_does_not_gain_as_a_program_calls_it_is_not_named(beaten: World) -> None:
    beaten.confirmer.ratio[KEY] = 1.0
    only(search(beaten, 1024, candidates="all"))
    assert beaten.confirmer.asked[-1]["chosen"] == "ref:cudnn"
    (entry,) = store.load(beaten.registry).entries
    assert entry.served is None


def test_a_library_is_compared_again_when_it_is_another_one(
    beaten: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, comparisons in (("1.2.3", 1), ("1.2.3", 1), ("1.2.4", 2)):
        monkeypatch.setattr(libraries, "installed", lambda name, v=version: f"{name} {v}")
        only(search(beaten, 1024, candidates="all"))
        compared = [a for a in beaten.confirmer.asked if a["chosen"] == "ref:cudnn"]
        assert len(compared) == comparisons


def test_only_what_beats_our_choice_beyond_the_margin_is_asked(world: World) -> None:
    near = 0.999 * known_times(FAST, benchmark_workload(1024, 128, DType.FP16))
    world.profiler = FakeProfiler(lambda s, w: near if "ref:" in s else known_times(s, w))
    only(search(world, 1024, candidates="all"))
    assert [a["chosen"] for a in world.confirmer.asked] == [FAST]
