"""A search without a GPU, from a recording of one that had it."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Attempt, Outcome, Variant
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.lab.default_check import compare_recording
from fa_tune.profile.base import MeasurePlan
from fa_tune.search.decide import Rule
from fa_tune.search.neighbor_regret import Neighbour
from fa_tune.store import recordings
from fa_tune.store.registry import file as store
from fa_tune.tune import dispatch, plan
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.results import WorkloadResult
from fa_tune.tune.tie_break import TieBreak
from tests.tune import fakes
from tests.tune.conftest import PLAN, World
from tests.tune.fakes import FakeProfiler
from tests.tune.test_search import DEFAULT, FAST, again, known_times, only, search


@pytest.fixture
def world(world: World) -> World:
    world.profiler = FakeProfiler(known_times)
    return world


@pytest.fixture
def recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of a search, on a machine that has lost its GPU since."""
    folder = world.folder / "profiles"
    search(world, 1024, record=folder, registry=world.folder / "theirs.json")
    lose_the_gpu(world, monkeypatch)
    return folder


def test_a_replay_chooses_what_the_recorded_search_chose(world: World, recorded: Path) -> None:
    result = search(world, 1024, recordings=recorded)
    assert only(result).decision.chosen.subject == FAST
    assert "recorded on an NVIDIA H200" in result.source
    assert world.progress.notes[0] == result.source
    assert world.verifier.verified == [], "no GPU to verify on"
    (mine,) = store.load(world.registry).entries
    (theirs,) = store.load(world.folder / "theirs.json").entries
    assert (mine.source, mine.recording) == ("replay", "nvidia_h200/tune_trained_ncu.csv")
    assert (mine.chosen, mine.n) == (theirs.chosen, theirs.n)
    assert mine.median_s == pytest.approx(theirs.median_s)
    assert mine.provenance == recordings.load(recorded / mine.recording).meta.provenance
    assert mine.verdict is None


def test_a_length_that_nobody_recorded_is_said(world: World, recorded: Path) -> None:
    result = search(world, 1024, 777, recordings=recorded)
    unknown = result.results[1]
    assert unknown.decision is None
    assert "no recording by ncu" in unknown.problem
    assert unknown.attempts == ()
    with pytest.raises(NoUsableVariant, match=r"no recording holds .*; the nearest has"):
        search(world, 777, recordings=recorded)


def test_a_replay_beside_a_measured_entry_says_that_it_is_not_kept(
    world: World, recorded: Path
) -> None:
    own = world.folder / "theirs.json"
    before = own.read_text()
    assert search(world, 1024, recordings=recorded, registry=own).registry is None
    assert own.read_text() == before
    assert any("a replay does not replace it" in note for note in world.progress.notes)


def test_where_no_recording_holds_the_default_set_those_recorded_are_chosen_among(
    world: World, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = fakes.parsed(world.configs)
    fast = families.get("sm80").configs("fast", dtypes=[DType.FP16])
    lacking = [c for c in fast if c not in everything]
    monkeypatch.setattr(plan, "choose_configs", lambda *_, **__: lacking)
    held = len(everything)
    note = f"no recording holds the set 'fast': choosing among the {held} configs that are recorded"

    # A set that was asked for by name is not exchanged: beside it there is only the default.
    named = only(search(world, 1024, recordings=recorded, kernels="wide"))
    assert note not in world.progress.notes
    assert named.decision.chosen.subject == DEFAULT

    again(world)
    found = only(search(world, 1024, recordings=recorded, kernels="fast"))
    assert note in world.progress.notes
    assert found.decision.chosen.subject == FAST
    assert {a.outcome for a in found.attempts} == {Outcome.OK}

    # Nor is one that is recorded in part.
    again(world)
    monkeypatch.setattr(plan, "choose_configs", lambda *_, **__: [*lacking, everything[0]])
    search(world, 1024, recordings=recorded, kernels="fast")
    assert note not in world.progress.notes


def compiled(world: World) -> set[str]:
    return {request.variant.config for request in world.compiler.requests}


def test_a_replay_compiles_nothing_but_what_is_asked_for(world: World, recorded: Path) -> None:
    result = search(world, 1024, recordings=recorded)
    found = only(result)
    assert compiled(world) == set()
    for form, config in zip(world.configs, fakes.parsed(world.configs), strict=True):
        used = result.resources[Variant("sm80", form).key]
        assert (used.registers, used.dynamic_smem_bytes) == (168, config.smem_bytes)
        assert used.threads == 32 * config.n_warps
    again(world)
    asked = only(search(world, 1024, recordings=recorded, typed=frozenset({"arch"})))
    assert compiled(world) == set(world.configs)
    assert (asked.decision, asked.ranks) == (found.decision, found.ranks)


def test_a_replay_compiles_what_its_recording_says_too_little_of(
    world: World, recorded: Path
) -> None:
    """The registers of some: a tie would be settled by them."""
    (path,) = recorded.rglob("*.csv")
    header, *rows = path.read_text().splitlines()
    column = header.split(",").index("Regs")
    cells = list(csv.reader(rows))
    ours = [row for row in cells if row[0] in world.configs]
    for row in ours[:2]:
        row[column] = ""
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header.split(","), *cells])
    meta = path.with_suffix(".meta.json")
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"table_sha256": ""}))
    search(world, 1024, recordings=recorded)
    assert compiled(world) == {row[0] for row in ours[:2]}


def test_only_what_is_recorded_is_compiled_and_the_rest_is_counted(
    world: World, recorded: Path
) -> None:
    held = set(world.configs)
    world.configs = fakes.configs(9)
    typed = frozenset({"arch"})
    found = only(search(world, 1024, recordings=recorded, kernels="wide", typed=typed))
    assert compiled(world) == held
    assert any(note.startswith("5 of 9 configs") for note in world.progress.notes)
    lacking = {a.subject for a in found.attempts if a.outcome is Outcome.NOT_RECORDED}
    assert lacking == {key for key in fakes.keys(9) if key not in fakes.keys(4)}


# As the recorded search decided -----------------------------------------------------------------

CHOSEN_BY_TIME, CHOSEN = fakes.keys(4)[2:]
EVENTS = "nvidia_h200/tune_trained_events.csv"


class Wandering(FakeProfiler):
    """Times that a clock has spoilt, beside ratios that it has not."""

    def __init__(self, ratios: Mapping[str, float]) -> None:
        super().__init__(lambda s, _: 1e-3 if s == CHOSEN_BY_TIME else 2e-3, method="events")
        self.ratios = dict(ratios)

    def attempt(self, subject: str, plan: MeasurePlan) -> Attempt:
        ratio = self.ratios.get(subject, 1.5)
        relative = tuple(round(ratio * (1 + 1e-5 * i), 6) for i in range(plan.runs))
        return fakes.remeasured(super().attempt(subject, plan), relative=relative)


def lose_the_gpu(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    again(world)
    world.device = None
    world.confirmer.asked.clear()
    world.comparer.asked.clear()
    monkeypatch.setattr(PLAN, "choose_profiler", choose_profiler)


def replay(world: World, folder: Path, monkeypatch: pytest.MonkeyPatch) -> WorkloadResult:
    """What a machine without a GPU makes of the recording."""
    lose_the_gpu(world, monkeypatch)
    return only(search(world, 1024, recordings=folder, registry=world.folder / "mine.json"))


@pytest.mark.parametrize(
    ("ratios", "regrets", "chosen"),
    [
        # The lowest ratio, not the lowest time.
        ({DEFAULT: 1.0, CHOSEN_BY_TIME: 1.2, CHOSEN: 0.9}, {}, CHOSEN),
        # In a tie the one that is better next door, whatever the replay's own neighbours say.
        (
            {DEFAULT: 1.0, CHOSEN_BY_TIME: 0.9, CHOSEN: 0.902},
            {CHOSEN: 0.0, CHOSEN_BY_TIME: 0.02},
            CHOSEN,
        ),
        # Half the margin, for a default that is recorded to be behind.
        ({DEFAULT: 1.0, CHOSEN: 0.993}, {DEFAULT: 0.02, CHOSEN: 0.0}, CHOSEN),
        ({DEFAULT: 1.0, CHOSEN: 0.993}, {DEFAULT: 0.0, CHOSEN: 0.0}, DEFAULT),
    ],
)
def test_a_replay_decides_by_what_the_search_decided_by(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    ratios: Mapping[str, float],
    regrets: Mapping[str, float],
    chosen: str,
) -> None:
    folder = world.folder / "profiles"
    world.profiler = Wandering(ratios)
    both = [benchmark_workload(length, 128, DType.FP16) for length in (1024, 2048)]
    world.tie_break = TieBreak({w: Neighbour(regrets) for w in both} if regrets else {})
    live = only(search(world, 1024, record=folder, profiler="events"))
    assert live.decision.chosen.subject == chosen
    replayed = replay(world, folder, monkeypatch)
    assert replayed.decision.chosen.subject == chosen
    assert replayed.decision.rule == live.decision.rule
    assert replayed.decision.tie_set == live.decision.tie_set
    assert replayed.decision.sentence == live.decision.sentence
    assert replayed.margin == live.margin


def test_a_choice_that_was_not_confirmed_is_not_chosen_by_a_replay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.folder / "profiles"
    world.confirmer.ratio[benchmark_workload(1024, 128, DType.FP16).key] = 1.02
    live = only(search(world, 1024, record=folder))
    assert live.decision.rule is Rule.CONTRADICTED
    replayed = replay(world, folder, monkeypatch)
    assert replayed.decision == live.decision
    assert replayed.confirmation == live.confirmation
    assert world.confirmer.asked == [], "no GPU to ask"


def test_a_choice_that_is_behind_on_other_inputs_is_not_chosen_by_a_replay(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.folder / "profiles"
    first = only(search(world, 1024)).decision
    again(world)
    world.comparer.ratio[first.chosen.subject, "falling"] = 1.05
    live = only(search(world, 1024, record=folder, resume=False))
    assert live.decision.rule is Rule.BEHIND_ON_INPUTS
    replayed = replay(world, folder, monkeypatch)
    assert replayed.decision == live.decision
    assert replayed.on_inputs == live.on_inputs
    assert world.comparer.asked == [], "no GPU to ask"


def test_a_recording_that_does_not_tell_is_replayed_by_its_times(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of earlier versions: without the two last columns and the block of the meta file."""
    folder = world.folder / "profiles"
    world.profiler = Wandering({DEFAULT: 1.0, CHOSEN: 0.9, CHOSEN_BY_TIME: 1.2})
    search(world, 1024, record=folder, profiler="events")
    path = folder / EVENTS
    rows = [line.split(",") for line in path.read_text().splitlines()]
    assert rows[0][-2:] == ["relative", "preference"]
    with path.open(newline="") as stream:
        table = [row[:-2] for row in csv.reader(stream)]
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows(table)
    meta = path.with_suffix(".meta.json")
    told = json.loads(meta.read_text())
    del told["decided"], told["table_sha256"]
    meta.write_text(json.dumps(told))
    lose_the_gpu(world, monkeypatch)
    replayed = only(search(world, 1024, recordings=folder))
    assert replayed.decision.chosen.subject == CHOSEN_BY_TIME


# While it is being recorded ---------------------------------------------------------------------


def test_an_interrupted_search_leaves_what_it_measured_as_a_recording(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "AT_ONCE", 1)
    folder = world.folder / "profiles"
    search(world, 4096, record=folder)
    before = (folder / "nvidia_h200/tune_trained_ncu.csv").read_text()
    again(world)
    world.profiler = FakeProfiler(known_times, interrupt_after=23)
    with pytest.raises(KeyboardInterrupt):
        search(world, 512, 1024, 2048, record=folder)
    assert (folder / "nvidia_h200/tune_trained_ncu.csv").read_text() == before, (
        "the older one stays whole"
    )
    left = recordings.load(folder / "nvidia_h200/tune_trained_ncu_unfinished.csv")
    lengths = {Workload.from_key(a.workload).seq_len_q for a in left.attempts}
    assert lengths == {512, 1024}
    assert len(left.meta.decided) == 2
    assert left.meta.note
    found = {one.workload.key: one.chosen for one in compare_recording(left)}
    assert {key: one.chosen for key, one in left.meta.decided.items()} == found
    again(world)
    search(world, 512, 1024, 2048, record=folder)
    assert not (folder / "nvidia_h200/tune_trained_ncu_unfinished.csv").exists()
    assert not (folder / "nvidia_h200/tune_trained_ncu_unfinished.meta.json").exists()
    whole = recordings.load(folder / "nvidia_h200/tune_trained_ncu.csv")
    assert {Workload.from_key(a.workload).seq_len_q for a in whole.attempts} == {512, 1024, 2048}
    assert not whole.meta.note
