"""What is kept of two families: journal, recordings, registry."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.compile import kernel_source_identity, kernel_source_sha256
from fa_tune.core.model import Outcome, Variant
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal import AttemptRecord, VerdictRecord
from fa_tune.store.recordings import SOURCES, load_all
from fa_tune.store.registry import file as store
from fa_tune.tune.profilers import choose_profiler
from tests.families.wave import WaveFamily
from tests.tune.conftest import PLAN, World, only
from tests.tune.two_families.conftest import SM80_DEFAULT, WAVE, WAVE_BEST, again, by_family, search

# What is remembered -----------------------------------------------------------------------------


def marks(world: World) -> dict[str, set[Fingerprint]]:
    """The fingerprints of what the journal holds, by family."""
    found: dict[str, set[Fingerprint]] = {}
    for record in world.journal.records():
        if isinstance(record, AttemptRecord):
            found.setdefault(Variant.from_key(record.attempt.subject).family, set()).add(
                record.fingerprint
            )
        elif isinstance(record, VerdictRecord):
            found.setdefault(Variant.from_key(record.subject).family, set()).add(record.fingerprint)
    return found


def test_each_family_is_remembered_by_its_own_sources_and_architecture(world: World) -> None:
    search(world)
    found = marks(world)
    for family, arch in (("sm80", "sm_90"), ("wave", "sm_90a")):
        assert {m.kernel_source_sha256 for m in found[family]} == {kernel_source_identity(family)}
        assert {m.arch for m in found[family]} == {arch}
    (both,) = {m.kernel_source_sha256 for m in found["ref"]}
    assert both == kernel_source_identity("sm80", "wave")


def test_new_sources_of_one_family_leave_the_others_measurements(
    world: World, wave: WaveFamily
) -> None:
    search(world)
    again(world)
    wave.scale = "2.0f"
    search(world)
    measured = by_family({subject for subject, _, _ in world.profiler.measured})
    assert sorted(measured["wave"]) == sorted(WAVE)
    assert measured["sm80"] == [SM80_DEFAULT], "a base of comparison, taken beside the new ones"
    assert sorted(measured["ref"]) == ["ref:cudnn", "ref:fa2"]
    assert {Variant.from_key(v.partition(" @ ")[0]).family for v in world.verifier.verified} == {
        "wave"
    }


def test_what_one_family_measured_alone_serves_a_search_of_both(
    world: World, wave: WaveFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A journal of the time before the second family was there."""
    monkeypatch.delitem(families._FAMILIES, "wave")
    search(world)
    monkeypatch.setitem(families._FAMILIES, "wave", wave)
    again(world)
    result = search(world)
    measured = by_family({subject for subject, _, _ in world.profiler.measured})
    assert measured["sm80"] == [SM80_DEFAULT]
    assert sorted(measured["wave"]) == sorted(WAVE)
    assert only(result).decision.chosen.subject == WAVE_BEST


# Recordings -------------------------------------------------------------------------------------


@pytest.fixture
def recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording of both families, on a machine that has lost its GPU since."""
    folder = world.folder / "profiles"
    search(world, record=folder, registry=world.folder / "theirs.json")
    again(world)
    world.device = None
    monkeypatch.setattr(PLAN, "choose_profiler", choose_profiler)
    return folder


def test_a_recording_tells_the_sources_of_each_family(
    world: World, recorded: Path, wave: WaveFamily
) -> None:
    (recording,) = load_all(recorded)
    origin = recording.meta.provenance
    assert origin.kernel_source_sha256 == kernel_source_sha256("sm80", "wave")
    own = {name: kernel_source_sha256(name) for name in ("sm80", "wave")}
    assert origin.extra[SOURCES] == own
    result = search(world, recordings=recorded)
    assert only(result).decision.chosen.subject == WAVE_BEST
    (entry,) = store.load(world.registry).entries
    assert entry.source == "replay"
    assert entry.provenance.kernel_source_sha256 == own["wave"]
    assert SOURCES not in entry.provenance.extra
    assert world.progress.warnings == []
    wave.scale = "2.0f"
    assert "earlier kernel sources" in search(world, recordings=recorded).source


def test_a_family_that_nobody_recorded_is_left_out_of_a_replay(
    world: World, wave: WaveFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.folder / "profiles"
    monkeypatch.delitem(families._FAMILIES, "wave")
    search(world, record=folder, registry=world.folder / "theirs.json")
    monkeypatch.setitem(families._FAMILIES, "wave", wave)
    (meta,) = folder.glob("*/*.meta.json")
    assert json.loads(meta.read_text())["provenance"]["extra"] == {}, "as before there were two"
    again(world)
    world.device = None
    monkeypatch.setattr(PLAN, "choose_profiler", choose_profiler)
    one = only(search(world, recordings=folder))
    assert "no recording holds kernels of wave: left out" in world.progress.notes
    assert world.progress.warnings == []
    assert set(by_family(a.subject for a in one.attempts)) == {"ref", "sm80"}
    by_name = only(search(world, recordings=folder, families=("wave", "sm80")))
    reasons = {a.subject: a.outcome for a in by_name.attempts}
    assert {reasons[s] for s in WAVE} == {Outcome.NOT_RECORDED}, "who names it is told"
    assert one.decision.default == SM80_DEFAULT
