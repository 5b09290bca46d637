"""Which profiler is taken, and whose recordings are replayed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.errors import InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.core.inputs import DEFAULT, NORMAL, InputSpec
from fa_tune.core.model import Attempt, DeviceInfo, Measurement, Outcome
from fa_tune.core.options import MeasureOptions
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.store import recordings
from fa_tune.store.recordings import Meta
from fa_tune.tune import replayed
from fa_tune.tune.measure import measured, request_for
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.session import ProfilerSelection, open_session
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
        "recorded on an NVIDIA H200 on 2026-03-01 with ncu on normal inputs, "
        "replayed from nvidia_h200/new.csv, nvidia_h200/old.csv"
    )
    assert "other kernel sources" in progress.warnings[0]


def test_only_the_recordings_of_other_sources_are_named(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replayed, "is_of_other_sources", lambda r, *_: r.label.endswith("old.csv"))
    progress = Stages()
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    choose_profiler(MeasureOptions(), machine, progress)
    assert "old.csv" in progress.warnings[0]
    assert "new.csv" not in progress.warnings[0]


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


def test_the_method_that_holds_more_of_what_is_wanted_is_replayed(
    tmp_path: Path, folder: Path
) -> None:
    """ncu's recordings lack a workload that events' have; methods are not mixed."""
    causal = dataclasses.replace(WORKLOAD, causal=True)
    known = recordings.load(folder / H200.slug / "old.csv")
    timed = Measurement("sm80:x", causal.key, "events", (8e-3,))
    origin = dataclasses.replace(known.meta.provenance, method="events", profiler_version="")
    path = folder / H200.slug / "causal.csv"
    attempt = Attempt("sm80:x", causal.key, Outcome.OK, "", timed)
    recordings.save(path, [attempt], {}, Meta(recordings.SCHEMA, H200, origin))
    machine = fakes.machine(tmp_path, device=None, recordings=folder)

    def method(*wanted: Workload) -> str:
        found = choose_profiler(MeasureOptions(), machine, Stages(), wanted=wanted)
        return found.profiler.method

    assert method(WORKLOAD) == "ncu"
    assert method(causal) == "events"
    assert method(WORKLOAD, causal) == "events", "which hold both"
    assert method() == "ncu"


def test_recordings_of_nothing_that_is_wanted_are_not_named(tmp_path: Path) -> None:
    """They serve for what they say of neighbouring workloads, whoever made their kernels."""
    folder = tmp_path / "profiles"
    (config,) = families.get("sm80").configs("fast", dtypes=[WORKLOAD.dtype], d_head=128)[:1]
    subject = families.variant(config).key
    record(folder, "wanted", "events", "2026-02-01T00:00:00+00:00", {subject: 7e-3})
    record(folder, "newer", "events", "2026-03-01T00:00:00+00:00", {"sm80:x": 7e-3})
    causal = dataclasses.replace(WORKLOAD, causal=True)
    known = recordings.load(folder / H200.slug / "wanted.csv")
    attempt = dataclasses.replace(known.attempts[0], workload=causal.key)
    recordings.save(folder / H200.slug / "causal.csv", [attempt], {}, known.meta)
    machine = fakes.machine(tmp_path, device=None, recordings=folder)

    def whose(*wanted: Workload) -> str:
        found = choose_profiler(
            MeasureOptions(), machine, Stages(), wanted=wanted, configs=[config]
        )
        assert len(found.recordings) == 3
        return found.source

    assert whose(WORKLOAD).endswith(
        "2026-02-01 with events on normal inputs, replayed from nvidia_h200/wanted.csv"
    )
    assert whose(causal).endswith("replayed from nvidia_h200/causal.csv")
    assert "newer.csv" in whose(dataclasses.replace(WORKLOAD, batch=3)), "nothing is of it"


def test_the_method_that_holds_the_wanted_configs_is_replayed(tmp_path: Path, folder: Path) -> None:
    """ncu's recordings hold the workload, but only of configs that were not asked for."""
    a, b = families.get("sm80").configs("fast", dtypes=[WORKLOAD.dtype], d_head=WORKLOAD.d_head)[:2]
    subject = families.variant(a).key
    record(folder, "wanted", "events", "2026-02-01T00:00:00+00:00", {subject: 7e-3})
    machine = fakes.machine(tmp_path, device=None, recordings=folder)

    def method(*configs: Config) -> str:
        found = choose_profiler(
            MeasureOptions(), machine, Stages(), wanted=[WORKLOAD], configs=configs
        )
        return found.profiler.method

    assert method(a) == method(b, a) == "events"
    assert method(b) == method() == "ncu"


def test_recordings_of_these_kernels_are_preferred(tmp_path: Path, folder: Path) -> None:
    path = folder / H200.slug / "events.csv"
    known = recordings.load(path)
    origin = dataclasses.replace(
        known.meta.provenance, kernel_source_sha256=kernel_source_sha256("sm80")
    )
    recordings.save(path, known.attempts, {}, Meta(recordings.SCHEMA, H200, origin))
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    measured = choose_profiler(MeasureOptions(), machine, Stages(), wanted=[WORKLOAD])
    assert measured.profiler.method == "events", "ncu's are of other kernels"


def recorded_elsewhere(folder: Path, dates: tuple[str, ...]) -> DeviceInfo:
    """Recordings of another GPU model beside those of `folder`, one attempt each."""
    other = dataclasses.replace(H200, name="NVIDIA H100")
    known = recordings.load(folder / H200.slug / "old.csv")
    for number, date in enumerate(dates):
        origin = dataclasses.replace(known.meta.provenance, gpu=other.name, recorded_at=date)
        path = folder / other.slug / f"tune{number}.csv"
        recordings.save(path, known.attempts[:1], {}, Meta(recordings.SCHEMA, other, origin))
    return other


def test_the_gpu_with_most_recorded_is_replayed(tmp_path: Path, folder: Path) -> None:
    other = recorded_elsewhere(folder, ("2027-01-01T00:00:00+00:00",))
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    measured = choose_profiler(MeasureOptions(), machine, Stages())
    assert measured.device.name == "NVIDIA H200", "not the newest"
    assert "h100" not in measured.source
    many = tuple(f"2027-01-{day:02}T00:00:00+00:00" for day in range(1, 20))
    recorded_elsewhere(folder, many)
    assert choose_profiler(MeasureOptions(), machine, Stages()).device.name == other.name


def test_a_gpu_recorded_with_these_kernels_is_replayed(tmp_path: Path, folder: Path) -> None:
    other = recorded_elsewhere(folder, ("2020-01-01T00:00:00+00:00",))
    path = folder / other.slug / "tune0.csv"
    known = recordings.load(path)
    workload = Workload.from_key(known.attempts[0].workload)
    machine = fakes.machine(tmp_path, device=None, recordings=folder)

    def replayed() -> str:
        return choose_profiler(MeasureOptions(), machine, Stages(), wanted=[workload]).device.name

    assert replayed() == "NVIDIA H200", "most is recorded of it, all by other kernels"
    origin = dataclasses.replace(
        known.meta.provenance, kernel_source_sha256=kernel_source_sha256("sm80")
    )
    recordings.save(path, known.attempts, {}, Meta(recordings.SCHEMA, other, origin))
    assert replayed() == other.name


def test_of_gpus_that_answer_alike_the_one_recorded_by_ncu_is_replayed(
    tmp_path: Path, folder: Path
) -> None:
    other = recorded_elsewhere(folder, ("2020-01-01T00:00:00+00:00",))
    for path in (folder / other.slug / "tune0.csv", folder / H200.slug / "events.csv"):
        known = recordings.load(path)
        origin = dataclasses.replace(
            known.meta.provenance, kernel_source_sha256=kernel_source_sha256("sm80")
        )
        device = known.meta.device
        recordings.save(path, known.attempts, {}, Meta(recordings.SCHEMA, device, origin))
    wanted = [Workload.from_key(known.attempts[0].workload)]
    machine = fakes.machine(tmp_path, device=None, recordings=folder)
    measured = choose_profiler(MeasureOptions(), machine, Stages(), wanted=wanted)
    assert (measured.device.name, measured.profiler.method) == (other.name, "ncu")


def test_a_gpus_own_folder_is_replayed(tmp_path: Path, folder: Path) -> None:
    other = recorded_elsewhere(folder, ("2027-01-01T00:00:00+00:00",))
    machine = fakes.machine(tmp_path, device=None, recordings=folder / other.slug)
    assert choose_profiler(MeasureOptions(), machine, Stages()).device.name == other.name


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


def test_auto_falls_back_to_events_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fa_tune.profile.ncu.profiler.find_ncu", without_ncu)
    progress = Stages()
    measured = choose_profiler(MeasureOptions(), fakes.machine(tmp_path), progress)
    assert isinstance(measured.profiler, EventsProfiler)
    assert measured.device == H200
    assert progress.warnings == ["ncu not found on PATH; timing with CUDA events instead"]


def test_ncu_asked_for_by_name_is_not_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_replay_can_be_asked_for_beside_a_gpu(tmp_path: Path, folder: Path) -> None:
    machine = fakes.machine(tmp_path, recordings=folder)
    measured = choose_profiler(MeasureOptions(profiler="replay"), machine, Stages())
    assert isinstance(measured.profiler, ReplayProfiler)


def test_an_unknown_profiler_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="unknown profiler 'nsys'"):
        choose_profiler(MeasureOptions(profiler="nsys"), fakes.machine(tmp_path), Stages())


def test_a_replay_takes_the_inputs_that_were_asked_for(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    subject = fakes.keys(1)[0]
    for inputs in ("normal", "falling"):
        record(folder, inputs, "ncu", "2026-02-01T00:00:00+00:00", {subject: 7e-3})
        path = folder / H200.slug / f"{inputs}.csv"
        known = recordings.load(path)
        recordings.save(path, known.attempts, {}, dataclasses.replace(known.meta, inputs=inputs))
    machine = fakes.machine(tmp_path, device=None, recordings=folder)

    def chosen(**options: InputSpec) -> ProfilerSelection:
        return choose_profiler(MeasureOptions(**options), machine, Stages(), wanted=[WORKLOAD])

    usual = chosen()
    assert (usual.inputs, len(usual.recordings)) == (NORMAL, 1), "all that there is"
    assert "on normal inputs" in usual.source
    decoding = dataclasses.replace(WORKLOAD, seq_len_q=1)  # of the usual inputs
    record(folder, "decoding", "ncu", "2026-03-01T00:00:00+00:00", {subject: 7e-3})
    path = folder / H200.slug / "decoding.csv"
    known = recordings.load(path)
    moved = [dataclasses.replace(a, workload=decoding.key) for a in known.attempts]
    recordings.save(path, moved, {}, dataclasses.replace(known.meta, inputs=str(DEFAULT)))
    assert chosen().inputs == NORMAL
    unknown = dataclasses.replace(WORKLOAD, seq_len_q=7)
    progress = Stages()
    found = choose_profiler(MeasureOptions(), machine, progress, wanted=[unknown])
    assert found.inputs == NORMAL, "where neither holds it, those on which all was measured"
    assert not progress.warnings, "of recordings that are not replayed"
    falling = chosen(inputs=InputSpec.parse("falling"))
    assert [r.meta.inputs for r in falling.recordings] == ["falling"]
    assert "on falling inputs" in falling.source
    with pytest.raises(NoUsableVariant, match="no recording has sink inputs"):
        chosen(inputs=InputSpec.parse("sink"))


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


def test_normal_inputs_are_replayed_where_more_is_recorded_of_them(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    (config,) = families.get("sm80").configs("fast", dtypes=[WORKLOAD.dtype], d_head=128)[:1]
    causal = dataclasses.replace(WORKLOAD, causal=True)
    times = {families.variant(config).key: 7e-3}
    record(folder, "normal", "ncu", "2026-02-01T00:00:00+00:00", times)
    path = folder / H200.slug / "normal.csv"
    known = recordings.load(path)
    trained = dataclasses.replace(known.meta, inputs="trained")
    recordings.save(folder / H200.slug / "trained.csv", known.attempts, {}, trained)
    more = [dataclasses.replace(a, workload=causal.key) for a in known.attempts]
    recordings.save(path, [*known.attempts, *more], {}, known.meta)
    machine = fakes.machine(tmp_path, device=None, recordings=folder)

    def inputs(*wanted: Workload) -> str:
        found = choose_profiler(
            MeasureOptions(), machine, Stages(), wanted=wanted, configs=[config]
        )
        return str(found.inputs)

    assert inputs(WORKLOAD) == "trained"
    assert inputs(causal) == inputs(WORKLOAD, causal) == "normal"
