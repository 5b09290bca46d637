"""A search without a GPU, from a recording of one that had it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.errors import NoUsableVariant
from fa_tune.model import DType, Outcome
from fa_tune.pipeline.choosing import choose_profiler
from fa_tune.registry import store
from tests.pipeline import fakes
from tests.pipeline.conftest import SEARCH, World
from tests.pipeline.fakes import FakeProfiler
from tests.pipeline.test_search import DEFAULT, FAST, again, known_times, only, search


@pytest.fixture
def world(world: World) -> World:
    world.profiler = FakeProfiler(known_times)
    return world


@pytest.fixture
def recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of a search, on a machine that has lost its GPU since."""
    folder = world.folder / "profiles"
    search(world, 1024, record=folder, registry=world.folder / "theirs.json")
    again(world)
    world.device = None
    monkeypatch.setattr(SEARCH, "choose_profiler", choose_profiler)
    return folder


def test_a_replay_chooses_what_the_recorded_search_chose(world: World, recorded: Path) -> None:
    result = search(world, 1024, recordings=recorded)
    decision = only(result).decision
    assert decision is not None
    assert decision.chosen.subject == FAST
    assert "recorded on an NVIDIA H200" in result.whose
    assert world.progress.notes[0] == result.whose
    assert world.verifier.verified == [], "no GPU to verify on"
    (mine,) = store.load(world.registry).entries
    (theirs,) = store.load(world.folder / "theirs.json").entries
    assert (mine.source, mine.recording) == ("replay", "nvidia_h200/tune_ncu.csv")
    assert (mine.chosen, mine.n) == (theirs.chosen, theirs.n)
    assert mine.median_s == pytest.approx(theirs.median_s)
    assert mine.provenance.recorded_at == theirs.provenance.recorded_at
    assert mine.verdict is None


def test_a_length_that_nobody_recorded_is_said(world: World, recorded: Path) -> None:
    result = search(world, 1024, 777, recordings=recorded)
    unknown = result.results[1]
    assert unknown.decision is None
    assert "no ncu measurement of it" in unknown.problem
    assert {a.outcome for a in unknown.attempts} == {Outcome.NOT_RECORDED}
    with pytest.raises(NoUsableVariant, match="no ncu measurement"):
        search(world, 777, recordings=recorded)


def test_a_replay_beside_a_measured_entry_says_that_it_is_not_kept(
    world: World, recorded: Path
) -> None:
    own = world.folder / "theirs.json"
    before = own.read_text()
    search(world, 1024, recordings=recorded, registry=own)
    assert own.read_text() == before
    assert any("a replay does not replace it" in note for note in world.progress.notes)


def test_where_no_recording_holds_the_default_set_those_recorded_are_chosen_among(
    world: World, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = fakes.parsed(world.configs)
    fast = families.get("sm80").configs("fast", dtypes=[DType.FP16])
    lacking = [c for c in fast if c not in everything]
    monkeypatch.setattr(SEARCH, "choose_configs", lambda *_, **__: lacking)
    held = len(everything)
    note = f"no recording holds the set 'fast': choosing among the {held} configs that are recorded"

    # A set that was asked for by name is not exchanged: beside it there is only the default.
    named = only(search(world, 1024, recordings=recorded, kernels="wide"))
    assert note not in world.progress.notes
    assert named.decision is not None
    assert named.decision.chosen.subject == DEFAULT

    again(world)
    found = only(search(world, 1024, recordings=recorded, kernels="fast"))
    assert note in world.progress.notes
    assert found.decision is not None
    assert found.decision.chosen.subject == FAST
    assert {a.outcome for a in found.attempts} == {Outcome.OK}

    # Nor is one that is recorded in part.
    again(world)
    monkeypatch.setattr(SEARCH, "choose_configs", lambda *_, **__: [*lacking, everything[0]])
    search(world, 1024, recordings=recorded, kernels="fast")
    assert note not in world.progress.notes
