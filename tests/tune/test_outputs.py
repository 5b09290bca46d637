"""What outlives a search, and where it cannot be written."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fa_tune import __version__
from fa_tune.build import nvrtc
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.errors import StorageError
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.options import SearchOptions, WorkloadOptions
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.operations.flops import matmul_flop
from fa_tune.profile.base import MeasurePlan
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.store import recordings
from fa_tune.store.registry import file as store
from fa_tune.store.registry.schema import Entry
from fa_tune.store.table.read_csv import parse_rows
from fa_tune.tune import outputs
from fa_tune.tune.build import PreparedWorkload
from fa_tune.tune.flow import decide_one
from fa_tune.tune.measure import MeasuredWorkload
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.session import ProfilerSelection
from fa_tune.tune.tie_break import TieBreak
from tests.store.full_disk import refused_with_room
from tests.tune import fakes
from tests.tune.fakes import H200, FakeProfiler

WORKLOAD = benchmark_workload(1024, 128, DType.FP16)
CAUSAL = dataclasses.replace(WORKLOAD, causal=True)
OPTIONS = SearchOptions(WorkloadOptions(), "tune")
MINE = "user:mine.py:attention"
N = 9  # variants: the default takes 2 ms, the others 1.0, 1.1, 1.2 … ms

Change = Callable[..., SearchOptions]


def time(subject: str, _: Workload) -> float:
    if subject.startswith("ref:"):
        return {"ref:fa2": 4e-3, "ref:cudnn": 0.5e-3}[subject]
    if subject == MINE:
        return 0.1e-3
    place = fakes.keys(N).index(subject)
    return 2e-3 if place == 0 else 1e-3 + 1e-4 * (place - 1)


def result(
    workload: Workload = WORKLOAD,
    *,
    runs: int = 3,
    beside: tuple[str, ...] = ("fa2", "cudnn"),
    **failures: Any,
) -> WorkloadResult:
    plan = MeasurePlan(workload, fakes.artifacts(N), beside, runs=runs)
    attempts = list(FakeProfiler(time, **failures).measure(plan, lambda _: None))
    crashed = Attempt("sm80:x", workload.key, Outcome.CRASHED, "an illegal\naddress")
    prepared = PreparedWorkload(workload, plan.artifacts, (crashed,), {})
    return decide_one(MeasuredWorkload(prepared, tuple(attempts), (DEFAULT,)), TieBreak())


def changed(one: WorkloadResult, subject: str, **fields: Any) -> WorkloadResult:
    """The result with other fields of one subject's measurement."""
    attempts = [fakes.remeasured(a, **fields) if a.subject == subject else a for a in one.attempts]
    return dataclasses.replace(one, attempts=tuple(attempts))


def search_result(*results: WorkloadResult) -> SearchResult:
    resources = {key: fakes.resources() for key in fakes.keys(N)}
    return SearchResult(results, (), resources, "mine", "ncu", None, H200)


DEFAULT = fakes.keys(1)[0]
BEST = fakes.keys(2)[1]


@pytest.fixture
def kept(tmp_path: Path) -> Callable[..., Entry]:
    """Keeps one result and reads the entry back from the file."""

    def keep(one: WorkloadResult | None = None, **verdicts: bool) -> Entry:
        one = one or result()
        path = tmp_path / "sub" / "registry.json"
        if verdicts.get("verified", True):
            one = dataclasses.replace(one, verdicts={BEST: fakes.RIGHT})
        measured = fakes.selected(FakeProfiler())
        refused = outputs.keep_in_registry(path, search_result(one), measured)
        assert refused == ()
        (entry,) = store.load(path).entries
        return entry

    return keep


# The registry -----------------------------------------------------------------------------------


def test_an_entry_says_what_was_chosen_and_by_how_much(kept: Callable[..., Entry]) -> None:
    entry = kept()
    assert (entry.gpu.name, entry.gpu.compute_capability) == ("NVIDIA H200", (9, 0))
    assert entry.workload == WORKLOAD
    assert (entry.method, entry.source, entry.recording) == ("ncu", "measured", None)
    assert entry.chosen.key == BEST
    assert entry.n == 3
    assert entry.median_s == pytest.approx(1e-3, rel=1e-3)
    assert entry.interval_s[0] <= entry.median_s <= entry.interval_s[1]
    assert entry.tflops == pytest.approx(matmul_flop(WORKLOAD) / entry.median_s / 1e12)
    assert entry.default.key == DEFAULT
    assert entry.ratio_to_default.value == pytest.approx(0.5)
    assert {name: r.value for name, r in entry.ratio_to_references.items()} == pytest.approx(
        {"fa2": 0.25, "cudnn": 2.0}
    )
    assert BEST in entry.reason
    assert [v.key for v in entry.tie_set] == [BEST]
    assert [r.variant.key for r in entry.runners_up] == fakes.keys(7)[2:]
    assert [r.ratio.value for r in entry.runners_up] == pytest.approx([1.1, 1.2, 1.3, 1.4, 1.5])
    verdict = entry.verdict
    assert (verdict.correct, verdict.cases) == (True, 1)
    assert (verdict.max_abs_error, verdict.limit) == (1e-3, 2.2e-3)
    origin = entry.provenance
    assert (origin.gpu, origin.driver, origin.nvrtc) == (H200.name, H200.driver, nvrtc.version())
    assert (origin.method, origin.profiler_version) == ("ncu", "2025.3.1")
    assert origin.profiler_args == ("--page", "raw")
    assert (origin.clock_policy, origin.cache_policy) == ("none", "flush all")
    assert origin.kernel_source_sha256 == kernel_source_sha256("sm80")
    assert origin.fa_tune_version == __version__
    assert origin.recorded_at.endswith("+00:00")


def test_a_single_sample_has_no_interval_and_what_was_not_verified_no_verdict(
    kept: Callable[..., Entry],
) -> None:
    entry = kept(result(runs=1), verified=False)
    assert (entry.n, entry.interval_s, entry.verdict) == (1, None, None)
    assert entry.ratio_to_default.interval is None


def test_a_users_kernel_is_measured_beside_ours_and_never_chosen(
    kept: Callable[..., Entry], tmp_path: Path
) -> None:
    one = result(beside=("fa2", MINE))
    assert one.decision.to_references[MINE].value == pytest.approx(10.0)
    entry = kept(one)
    assert entry.chosen.key == BEST
    assert list(entry.ratio_to_references) == ["fa2"], "it is of this machine alone"
    recorder = outputs.Recorder(tmp_path, OPTIONS, fakes.selected(FakeProfiler()))
    recorder.finish([one])
    recorded = {a.subject: a.measurement for a in recordings.load(recorder.path).attempts}
    assert recorded[MINE] is not None
    assert recordings.families_in(recordings.load(recorder.path)) == ("sm80",)


def replay(tmp_path: Path) -> ProfilerSelection:
    """The result above as a recording, and a profiler that replays it."""
    mine = fakes.selected(FakeProfiler())
    recorder = outputs.Recorder(tmp_path / "profiles", OPTIONS, mine)
    recorder.finish([result()])
    recording = recordings.load(recorder.path)
    profiler = ReplayProfiler(
        {recording.label: {(a.workload, a.subject): a for a in recording.attempts}},
        method="ncu",
        version="2025.3.1",
        arguments=(),
        clock_policy="none",
        cache_policy="flush all",
    )
    return ProfilerSelection(profiler, recording.meta.device, "theirs", recording)


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.NOT_RECORDED])
def test_an_entry_gives_way_where_its_choice_failed_not_where_nobody_tried_it(
    kept: Callable[..., Entry], tmp_path: Path, outcome: Outcome
) -> None:
    kept()
    later = result(failures={BEST: (outcome, "so it ended")})
    registry = tmp_path / "sub" / "registry.json"
    measured = fakes.selected(FakeProfiler())
    refused = outputs.keep_in_registry(registry, search_result(later), measured)
    (entry,) = store.load(registry).entries
    assert (entry.chosen.key == BEST) is (outcome is Outcome.NOT_RECORDED) is bool(refused)


def test_the_users_own_registry_is_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert outputs.registry_path(None) == tmp_path / "fa-tune" / "registry.json"
    assert outputs.registry_path(Path("mine.json")) == Path("mine.json")


# Tables -----------------------------------------------------------------------------------------


def test_the_csv_has_every_attempt(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "table.csv"
    outputs.save_csv(path, search_result(result()))
    rows = parse_rows(path.read_text("utf-8"), str(path))
    assert len(rows) == N + 3
    assert [row.kernel for row in rows[:2]] == ["FA2", "cuDNN"]
    (crashed,) = (row for row in rows if row.outcome is Outcome.CRASHED)
    assert (crashed.kernel, crashed.duration_s) == ("x", None)
    assert "illegal" in crashed.reason


def test_a_recording_says_which_gpus_and_libraries_measured(tmp_path: Path) -> None:
    one = result()
    options = dataclasses.replace(OPTIONS, kernels="128,64")
    told = {
        "ref:cudnn": ("GPU-1", {"torch": "2.11.0", "cudnn": "9.13.0"}),
        "ref:fa2": ("GPU-2", {"torch": "2.10.0"}),  # resumed
    }
    for subject, (uuid, versions) in told.items():
        one = changed(one, subject, gpu_uuid=uuid, versions=versions)
    recorder = outputs.Recorder(tmp_path, options, fakes.selected(FakeProfiler(method="ncu")))
    recorder.finish([one])
    assert recorder.path == tmp_path / "nvidia_h200" / "128_64_trained_ncu.csv"
    recording = recordings.load(recorder.path)
    assert (recording.meta.device, recording.meta.provenance.method) == (H200, "ncu")
    assert {a.subject for a in recording.attempts} == {a.subject for a in one.attempts}
    found = recording.meta.measured_by
    assert found.gpus == ("GPU-1", "GPU-2")
    assert found.versions == {"torch": ("2.10.0", "2.11.0"), "cudnn": ("9.13.0",)}
    assert found.libraries == "torch 2.10.0 and 2.11.0, cuDNN 9.13.0"


# Places that cannot be written ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "place", "locked", "refused"),
    [
        *((what, "a/b/c", None, "") for what in ("registry", "csv", "record")),
        *((w, "locked/x/it", "locked", "locked is not w") for w in ("registry", "csv", "record")),
        *((what, "", None, "is a folder, where a file") for what in ("registry", "csv")),
        *((what, "file", "file", "file is not writable") for what in ("registry", "csv")),
        ("registry", "file/x.json", None, "file is not a folder"),
        ("csv", "file/a/b/x.csv", None, "file is not a folder"),
        ("record", "file", None, "file is not a folder"),
        ("record", "file/x", None, "file is not a folder"),
        # Replaced by a file beside it, which a folder may refuse where the file would not.
        ("registry", "locked/kept", "locked", "locked is not writable; --registry"),
        ("registry", "link", "locked", "locked is not writable; --registry"),
        ("csv", "locked/kept", "locked", "locked is not writable; --csv"),
    ],
)
def test_a_place_is_refused_before_any_work_and_left_untouched(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    what: str,
    place: str,
    locked: str | None,
    refused: str,
) -> None:
    (tmp_path / "locked").mkdir()
    for name in ("file", "locked/kept"):
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "locked" / "kept")
    before = sorted(tmp_path.rglob("*"))
    # Modes do not keep root out, so the question itself is answered here.
    unwritable = tmp_path / locked if locked else None
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != unwritable)
    paths: dict[str, Any] = {what: tmp_path / place}
    registry = paths.pop("registry", tmp_path / "registry.json")
    with pytest.raises(StorageError, match=refused) if refused else contextlib.nullcontext():
        outputs.check_writable(dataclasses.replace(OPTIONS, **paths), registry)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_full_disk_leaves_the_old_csv(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    outputs.save_csv(path, search_result(result()))
    before = path.read_bytes()
    both = search_result(result(), result(CAUSAL))
    message = refused_with_room(len(before) + 100, lambda: outputs.save_csv(path, both))
    assert message.startswith(f"cannot write {path}: ")
    assert path.read_bytes() == before


def test_a_csv_may_go_where_the_shell_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of devices is not written to."""
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != Path("/dev"))
    options = dataclasses.replace(OPTIONS, csv=Path("/dev/stdout"))
    outputs.check_writable(options)
    outputs.save_csv(Path("/dev/null"), search_result(result()))
    assert not Path("/dev/null").is_file()


def test_a_replayed_entry_names_the_recording_of_its_own_numbers(tmp_path: Path) -> None:
    """Not the newest of those that were replayed."""
    measured = replay(tmp_path)
    newest = dataclasses.replace(measured.recording, path=tmp_path / "nvidia_h200" / "newest.csv")
    several = dataclasses.replace(
        measured, recording=newest, recordings=(newest, measured.recording)
    )
    one = result()
    one = changed(one, BEST, replayed_from=measured.recording.label)
    assert outputs.recording_of(BEST, one, several) is measured.recording
