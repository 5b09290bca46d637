"""Which profiler is taken, and whose recordings are replayed."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.core.options import MeasureOptions
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.tune import replayed
from fa_tune.tune.measure import measured, request_for
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.session import open_session
from tests.tune import fakes
from tests.tune.fakes import H200, Stages
from tests.tune.recorded import WORKLOAD, record


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of recordings: ncu's, an older one of ncu's, and a newer one by events."""
    folder = tmp_path / "profiles"
    record(folder, "new", "ncu", "2026-03-01T00:00:00+00:00", {"ref:fa2": 2e-3, "sm80:x": 1e-3})
    record(folder, "old", "ncu", "2026-01-01T00:00:00+00:00", {"sm80:x": 9e-3, "sm80:y": 3e-3})
    record(folder, "events", "events", "2026-04-01T00:00:00+00:00", {"sm80:x": 8e-3})
    return folder


def test_without_a_gpu_auto_replays_and_says_whose_and_when(tmp_path: Path, folder: Path) -> None:
    progress = Stages()
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    measured = choose_profiler(MeasureOptions(), machine, progress)
    assert isinstance(measured.profiler, ReplayProfiler)
    assert measured.device == H200
    assert measured.source == (
        "recorded on an NVIDIA H200 on 2026-03-01 with ncu on normal inputs, with earlier kernel "
        "sources whose times may differ, replayed from nvidia_h200/new.csv, nvidia_h200/old.csv"
    )
    assert progress.warnings == [], "nothing that a user could mend"
    machine = fakes.machine(tmp_path, recordings=folder)
    measured = choose_profiler(MeasureOptions(profiler="replay"), machine, Stages())
    assert isinstance(measured.profiler, ReplayProfiler)


def test_only_the_recordings_of_other_sources_are_named(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "is_of_other_sources", lambda r, *_: r.label.endswith("old.csv"))
    progress = Stages()
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    source = choose_profiler(MeasureOptions(), machine, progress).source
    assert "earlier kernel sources (nvidia_h200/old.csv)" in source


def test_replay_never_mixes_methods_and_takes_the_newest(tmp_path: Path, folder: Path) -> None:
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    selection = choose_profiler(MeasureOptions(profiler="replay"), machine, Stages())
    options = MeasureOptions(references=("fa2", "cudnn"))
    session = open_session(machine, selection, options, Stages())
    tally = session.tally
    artifacts = {key: fakes.artifact(key) for key in ("sm80:x", "sm80:y", "sm80:z")}
    (found,) = measured(session, [request_for(session, WORKLOAD, artifacts)])
    times = {a.subject: a.measurement.samples_s[0] for a in found if a.measurement}
    assert times == {"ref:fa2": 2e-3, "sm80:x": 1e-3, "sm80:y": 3e-3}
    assert {a.measurement.method for a in found if a.measurement} == {"ncu"}
    missing = [a.subject for a in found if a.outcome is Outcome.NOT_RECORDED]
    assert missing == ["ref:cudnn", "sm80:z"]
    assert (tally.reused, tally.measured) == (5, 0)
    assert not (tmp_path / "journal.sqlite").exists(), "a replay is no measurement of ours"


def test_without_gpu_and_recordings_there_is_nothing(tmp_path: Path) -> None:
    machine = fakes.machine(tmp_path, device=None, recordings=tmp_path / "empty")
    with pytest.raises(ToolMissing, match=r"no folder .*empty"):
        choose_profiler(MeasureOptions(), machine, Stages())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ToolMissing, match=r"no recordings in .*empty"):
        choose_profiler(MeasureOptions(), machine, Stages())


@pytest.mark.parametrize("name", ["ncu", "events"])
def test_a_profiler_asked_for_by_name_needs_its_gpu(tmp_path: Path, name: str) -> None:
    machine = fakes.machine(tmp_path, device=None)
    with pytest.raises(ToolMissing, match="no GPU found") as caught:
        choose_profiler(MeasureOptions(profiler=name), machine, Stages())
    assert caught.value.exit_status == 3
    assert "\n" not in str(caught.value)


def without_ncu() -> Path:
    raise ToolMissing("ncu not found on PATH")


def test_only_auto_falls_back_to_events_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fa_tune.profile.ncu.profiler.find_ncu", without_ncu)
    progress = Stages()
    measured = choose_profiler(MeasureOptions(), fakes.machine(tmp_path), progress)
    assert isinstance(measured.profiler, EventsProfiler)
    assert measured.device == H200
    assert progress.warnings == ["ncu not found on PATH; timing with CUDA events instead"]
    monkeypatch.setattr("fa_tune.profile.ncu.profiler.find_ncu", without_ncu)
    with pytest.raises(ToolMissing, match="ncu not found on PATH"):
        choose_profiler(MeasureOptions(profiler="ncu"), fakes.machine(tmp_path), Stages())


@pytest.mark.parametrize("name", ["auto", "ncu"])
def test_ncu_is_taken_where_it_is(tmp_path: Path, name: str) -> None:
    program = tmp_path / "ncu"
    program.write_text("#!/bin/sh\necho 'Version 2025.3.1.0 (build 1)'\n")
    program.chmod(0o755)
    machine = fakes.machine(tmp_path, ncu=program)
    options = MeasureOptions(profiler=name, clock_control="base")
    measured = choose_profiler(options, machine, Stages())
    assert isinstance(measured.profiler, NcuProfiler)
    assert measured.source == "measured on this machine's NVIDIA H200 under ncu 2025.3.1"
    assert measured.profiler.clock_policy.startswith("base")


def test_sustained_times_are_not_replayed(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    subject = fakes.keys(1)[0]
    record(folder, "fast_sustained", "sustained", "2026-03-01T00:00:00+00:00", {subject: 7e-3})
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    with pytest.raises(ToolMissing):
        choose_profiler(MeasureOptions(), machine, Stages(), wanted=[WORKLOAD])
    record(folder, "fast_events", "events", "2026-02-01T00:00:00+00:00", {"sm80:x": 7e-3})
    found = choose_profiler(MeasureOptions(), machine, Stages(), wanted=[WORKLOAD])
    assert [r.path.name for r in found.recordings] == ["fast_events.csv"]


def test_a_regime_has_a_method_of_its_own(tmp_path: Path) -> None:
    for regime, method in (("isolated", "events"), ("sustained", "sustained")):
        options = MeasureOptions(profiler="events", regime=regime, references=())
        selection = choose_profiler(options, fakes.machine(tmp_path), Stages())
        assert selection.method == method
    with pytest.raises(InvalidConfig, match="unknown profiler 'nsys'"):
        choose_profiler(MeasureOptions(profiler="nsys"), fakes.machine(tmp_path), Stages())
