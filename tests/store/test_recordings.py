"""A recording is what was measured, whatever that was, and says when it cannot be read."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fa_tune.core import paths
from fa_tune.core.comparison import Confirmation
from fa_tune.core.errors import FaTuneError, ProfileFormatError, StorageError
from fa_tune.core.model import (
    Attempt,
    DeviceInfo,
    Measurement,
    Outcome,
    Provenance,
    Quantity,
    Resources,
    Variant,
)
from fa_tune.core.stats import Interval, Ratio
from fa_tune.core.workload import MASKS, DType, Workload
from fa_tune.families.sm80.sets import get_kernel_configs
from fa_tune.store import recordings
from fa_tune.store.recordings import Decided, Meta
from tests.store.full_disk import refused_with_room, side_by_side

H200 = DeviceInfo("NVIDIA H200", (9, 0), "580.65.06", 150_000_000_000, "GPU-1")
ORIGIN = Provenance(
    gpu="NVIDIA H200",
    driver="580.65.06",
    cuda="13.0",
    nvrtc="13.0.88",
    method="ncu",
    profiler_version="2025.3.1",
    profiler_args=("--clock-control", "none"),
    clock_policy="none, boost dynamic",
    cache_policy="flush all",
    kernel_source_sha256="5d1c" * 16,
    recorded_at="2026-01-02T03:04:05+00:00",
    fa_tune_version="0.1.0",
    extra={"note": "a quiet machine", "n": 3},
)
DECIDED = {
    "b16_h16_kv16_q512_k512_d128_fp16_full": Decided(0.01),
    "b16_h16_kv16_q1024_k1024_d128_fp16_full": Decided(
        0.005, Confirmation("sm80:a", "sm80:b", Ratio(0.98, Interval(0.97, 0.99)), 12)
    ),
}
META = Meta(recordings.SCHEMA, H200, ORIGIN, "by hand: never", DECIDED)
CONDITIONS = {"clocks": ORIGIN.clock_policy, "cache": ORIGIN.cache_policy}
WORKLOAD = Workload(16, 16, 16, 1024, 1024, 128, DType.FP16)

# Any recording at all ---------------------------------------------------------------------------

SUBJECTS = ["ref:fa2", "ref:cudnn", "ref:fa3", "ref:fa4"] + [
    Variant("sm80", c.short_form()).key for c in get_kernel_configs("tune", d_head=128)
]


def workloads() -> st.SearchStrategy[Workload]:
    size = st.integers(1, 70_000)
    heads = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda g: (g[0] * g[1], g[1]))
    return st.builds(
        lambda batch, pair, q, kv, d, dtype, mask, lse, scale: Workload(
            *(batch, pair[0], pair[1], q, kv, d, dtype),
            causal=mask != "full",
            bottom_right=mask == "causal_br",
            lse=lse,
            softmax_scale=scale,
        ),
        st.integers(1, 64), heads, size, size, st.sampled_from([64, 128]),
        st.sampled_from(list(DType)), st.sampled_from(MASKS), st.booleans(),
        st.none() | st.floats(1e-30, 1e30),
    )  # fmt: skip


def written(low: float, high: float) -> st.SearchStrategy[float]:
    """Numbers as a file holds them: to twelve digits."""
    return st.floats(low, high).map(lambda value: float(f"{value:.12g}"))


COUNTERS = {
    "sm__cycles_elapsed.max": (written(1, 1e12), "cycle"),
    "launch__registers_per_thread": (st.integers(16, 255).map(float), "register/thread"),
    "lts__t_sector_hit_rate.pct": (written(0.01, 120), "%"),
    "sm__cycles_elapsed.avg.per_second": (written(1e8, 3e9), "hz"),
}


@st.composite
def attempts(draw: st.DrawFn, subject: str, workload: Workload) -> Attempt:
    outcome = draw(st.sampled_from(list(Outcome)))
    if outcome is not Outcome.OK:
        reason = draw(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40))
        return Attempt(subject, workload.key, outcome, reason)
    samples_s = tuple(draw(st.lists(written(1e-6, 10), min_size=1, max_size=6)))
    names = draw(st.sets(st.sampled_from(list(COUNTERS))))
    counters = {n: Quantity(draw(COUNTERS[n][0]), COUNTERS[n][1]) for n in sorted(names)}
    # What the choice was made by; recordings of old have none.
    ratio = st.lists(written(1e-3, 10), min_size=len(samples_s), max_size=len(samples_s))
    held_out_s = draw(st.sampled_from([(), (0.5e-3, 0.25e-3)]))
    measurement = Measurement(
        subject,
        workload.key,
        "ncu",
        samples_s,
        counters,
        CONDITIONS,
        relative=draw(st.one_of(st.just(()), ratio.map(tuple))),
        preference=draw(st.none() | st.integers(0, 2000)),
        held_out_s=held_out_s,
        held_out_relative=tuple(s * 1e3 for s in held_out_s),
    )
    return Attempt(subject, workload.key, outcome, "", measurement)


@st.composite
def tables(draw: st.DrawFn) -> list[Attempt]:
    return [
        draw(attempts(subject, workload))
        for workload in draw(st.lists(workloads(), max_size=3, unique=True))
        for subject in draw(st.lists(st.sampled_from(SUBJECTS), max_size=4, unique=True))
    ]


folders = itertools.count()


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(tables())
def test_what_is_saved_is_loaded(tmp_path: Path, saved: list[Attempt]) -> None:
    path = tmp_path / str(next(folders)) / "nvidia_h200" / "tune_ncu.csv"
    recordings.save(path, saved, {}, META)
    recording = recordings.load(path)
    assert recording.meta == META
    assert sorted(map(_flat, recording.attempts)) == sorted(map(_flat, saved))
    assert recording.label == "nvidia_h200/tune_ncu.csv"


def _flat(attempt: Attempt) -> str:
    """Everything, for comparing; samples to the digits that a file holds."""
    parts: dict[str, object] = dataclasses.asdict(attempt)
    if attempt.measurement is not None:
        digits = [f"{1e3 * s:.12g}" for s in attempt.measurement.samples_s]
        counters = sorted(
            (n, f"{q.value:.12g}", q.unit) for n, q in attempt.measurement.counters.items()
        )
        m = attempt.measurement
        parts["measurement"] = (
            *(digits, counters, sorted(m.conditions.items())),
            *(m.relative, m.preference, m.held_out_s, m.held_out_relative),
        )
    return repr(parts)


def measured(subject: str, *samples_s: float) -> Attempt:
    measurement = Measurement(subject, WORKLOAD.key, "ncu", samples_s, {}, CONDITIONS)
    return Attempt(subject, WORKLOAD.key, Outcome.OK, "", measurement)


def test_saving_what_was_loaded_changes_no_byte(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "a.csv"
    crashed = Attempt("sm80:x", WORKLOAD.key, Outcome.CRASHED, 'said "no",\nand left')
    recordings.save(path, [measured("ref:fa2", 1.1e-3, 1.2e-3), crashed], {}, META)
    before = path.read_bytes(), path.with_name("a.meta.json").read_bytes()
    recording = recordings.load(path)
    recordings.save(path, recording.attempts, {}, recording.meta)
    assert (path.read_bytes(), path.with_name("a.meta.json").read_bytes()) == before


def test_registers_are_kept_from_the_compiler_where_nobody_counted(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "a.csv"
    resources = {SUBJECTS[-1]: Resources(168, 0, 0, 0, 0, 49152, 128, 2)}
    recordings.save(path, [measured(SUBJECTS[-1], 1e-3)], resources, META)
    (attempt,) = recordings.load(path).attempts
    assert attempt.measurement.counters == {
        "launch__registers_per_thread": Quantity(168.0, "register/thread")
    }


# Finding them -----------------------------------------------------------------------------------


def save(folder: Path, name: str, date: str, gpu: str = "nvidia_h200") -> Path:
    path = folder / gpu / f"{name}.csv"
    origin = dataclasses.replace(ORIGIN, recorded_at=date)
    recordings.save(
        path, [measured("ref:fa2", 1e-3)], {}, dataclasses.replace(META, provenance=origin)
    )
    return path


def test_newest_first_over_all_gpus(tmp_path: Path) -> None:
    save(tmp_path, "a", "2026-02-01T00:00:00+00:00")
    save(tmp_path, "b", "2026-04-01T00:00:00+00:00", "nvidia_h100")
    save(tmp_path, "c", "2026-03-01T00:00:00+00:00")
    labels = [r.label for r in recordings.load_all(tmp_path)]
    assert labels == ["nvidia_h100/b.csv", "nvidia_h200/c.csv", "nvidia_h200/a.csv"]
    # Files that are no recordings, and one that a search has yet to finish.
    (tmp_path / "nvidia_h200" / "stray.csv").write_text("anything")
    (tmp_path / "nvidia_h200" / "notes.json").write_text("{")
    (tmp_path / "autotune.csv").write_text("anything")
    going_on = save(tmp_path, f"d{recordings.UNFINISHED}", "2026-05-01T00:00:00+00:00")
    assert [r.label for r in recordings.load_all(tmp_path)] == labels
    assert recordings.load(going_on).attempts


def test_a_name_with_dots(tmp_path: Path) -> None:
    save(tmp_path, "tune.2026.01", "2026-02-01T00:00:00+00:00")
    (recording,) = recordings.load_all(tmp_path)
    assert recording.path.name == "tune.2026.01.csv"


@pytest.mark.parametrize("name", ["nothing", "file"])
def test_no_folder_no_recordings(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    assert recordings.load_all(tmp_path / name) == ()


def test_the_shipped_recordings_can_be_read() -> None:
    for path in recordings.metas(paths.profiles_dir()):
        recording = recordings.load(path.with_name(path.name.replace(".meta.json", ".csv")))
        assert recording.attempts
        assert recording.meta.provenance.gpu == recording.meta.device.name
        assert recording.path.parent.name == recording.meta.device.slug


# Damage -----------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(FaTuneError) as caught:
        recordings.load(path)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ProfileFormatError | StorageError)
    if path.with_suffix(".meta.json").exists():  # else no folder's list has it
        with pytest.raises(FaTuneError, match=re.escape(str(caught.value))):
            recordings.check_all(path.parent)
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path, "tune", "2026-02-01T00:00:00+00:00")


@pytest.mark.parametrize("name", ["fast_gemma_1024_events", "tune_ncu"])
def test_a_recording_of_schema_1_is_written_anew_without_a_loss(name: str, tmp_path: Path) -> None:
    old = recordings.load(paths.profiles_dir() / "nvidia_h200" / f"{name}.csv")
    raw = json.loads(old.path.with_suffix(".meta.json").read_text())
    assert raw["schema"] == recordings.FLAT
    for key, flat in raw.get("decided", {}).items():
        decided = old.meta.decided[key]
        if decided.confirmed is not None:
            ratio, interval = flat["confirmed"]["ratio"], flat["confirmed"]["interval"]
            assert decided.confirmed.ratio == Ratio(ratio, Interval(*interval))
        told = [(f.to_default and f.to_default.value) for f in decided.on_inputs[decided.chosen]]
        assert told == [f["ratio"] for f in flat["on_inputs"][flat["chosen"]]]
    path = tmp_path / old.path.parent.name / old.path.name
    recordings.save(path, old.attempts, {}, old.meta)
    assert json.loads(path.with_suffix(".meta.json").read_text())["schema"] == recordings.SCHEMA
    assert recordings.load(path).meta == old.meta


def damage_meta(path: Path, **changes: object) -> None:
    meta = path.with_suffix(".meta.json")
    fields = json.loads(meta.read_text())
    for name, value in changes.items():
        if value is None:
            del fields[name]
        else:
            fields[name] = value
    meta.write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "tune.meta.json"),
        (b"{", "not JSON"),
        (b"[]", "tune.meta.json"),
        (b"\xff\xfe\x00", "tune.meta.json"),
    ],
)
def test_a_provenance_that_is_no_json(path: Path, text: bytes, said: str) -> None:
    path.with_suffix(".meta.json").write_bytes(text)
    assert said in refused(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"provenance": None}, "provenance: "),
        ({"device": {"name": "NVIDIA H200"}}, "device.compute_capability: "),
        ({"decided": {"b16": {"margin": 0.01}}}, "decided: not a workload key: 'b16'"),
        ({"schema": "first"}, "schema first is not the one"),
        ({"schema": True}, "schema True is not the one"),
        ({"schema": recordings.SCHEMA + 1}, f"schema {recordings.SCHEMA + 1} is not the one"),
    ],
)
def test_a_provenance_that_does_not_fit_names_the_field(
    path: Path, changes: dict[str, object], said: str
) -> None:
    damage_meta(path, **changes)
    message = refused(path)
    assert said in message
    assert "tune.meta.json" in message


@pytest.mark.parametrize(
    ("damaged", "change", "said"),
    [
        ("tune.meta.json", None, "has no readable tune.meta.json"),
        ("tune.csv", None, "tune.csv is missing"),
        ("tune.csv", lambda text: text[:-30], "the file may be cut"),
        ("tune.csv", lambda text: text.replace("FA2", "FA3", 1), "tune.meta.json"),
    ],
)
def test_a_file_that_is_gone_or_was_changed(
    path: Path, damaged: str, change: Callable[[str], str] | None, said: str
) -> None:
    file = path.with_name(damaged)
    if change is None:
        file.unlink()
    else:
        file.write_text(change(file.read_text()))
    assert said in refused(path)


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write the recording"):
        save(tmp_path / "file", "tune", "2026-02-01T00:00:00+00:00")


# Several writers, and killed ones ---------------------------------------------------------------

FEW, MORE = ([measured(s, 1e-3) for s in SUBJECTS[4 : 4 + n]] for n in (2, 9))
FEW_META, MORE_META = (dataclasses.replace(META, note=note) for note in ("few", "more"))


def is_whole(recording: recordings.Recording) -> bool:
    return len(recording.attempts) == len({"few": FEW, "more": MORE}[recording.meta.note])


def save_often(path: Path, saved: list[Attempt], meta: Meta) -> None:
    for _ in range(30):
        recordings.save(path, saved, {}, meta)


def test_of_two_writers_one_recording_is_left(tmp_path: Path) -> None:
    path = tmp_path / "gpu" / "a.csv"
    recordings.save(path, FEW, {}, FEW_META)

    def check() -> None:
        assert is_whole(recordings.load(path))

    pairs = ((FEW, FEW_META), (MORE, MORE_META))
    side_by_side(*(partial(save_often, path, *pair) for pair in pairs), meanwhile=check)
    check()
    assert {p.name for p in path.parent.iterdir() if p.suffix != ".lock"} == {
        "a.csv",
        "a.meta.json",
    }


class Killed(BaseException):
    """As if the process had ended there."""


@pytest.fixture
def half_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recording whose second writer was killed between its two files."""
    path = tmp_path / "gpu" / "a.csv"
    recordings.save(path, FEW, {}, FEW_META)
    rename = os.replace

    def killed(source: Path, target: Path) -> None:
        if str(target).endswith(".json"):
            raise Killed
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(Killed):
            recordings.save(path, MORE, {}, MORE_META)
    return path


def test_a_table_with_the_provenance_of_another_is_refused(half_saved: Path) -> None:
    message = refused(half_saved)
    assert str(half_saved) in message
    assert "a.meta.json" in message
    recordings.save(half_saved, MORE, {}, MORE_META)
    assert is_whole(recordings.load(half_saved))


def test_a_reader_waits_for_a_writer_between_its_two_files(
    half_saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = recordings.time.sleep

    def save(_: float) -> None:
        monkeypatch.setattr(recordings.time, "sleep", slept)  # the writer may have to wait itself
        recordings.save(half_saved, MORE, {}, MORE_META)

    monkeypatch.setattr(recordings.time, "sleep", save)
    assert is_whole(recordings.load(half_saved))


def test_no_name_that_no_terminal_may_see_is_kept_or_read(tmp_path: Path) -> None:
    name = "NVIDIA\x1b[2J H200"
    device = dataclasses.replace(META.device, name=name)
    origin = dataclasses.replace(ORIGIN, gpu=name)
    path = tmp_path / "gpu" / "a.csv"
    spoilt = dataclasses.replace(META, device=device, provenance=origin)
    with pytest.raises(StorageError, match="control character"):
        recordings.save(path, [measured("ref:fa2", 1e-3)], {}, spoilt)
    assert not path.exists()
    recordings.save(path, [measured("ref:fa2", 1e-3)], {}, META)
    meta = path.with_suffix(".meta.json")
    meta.write_text(meta.read_text().replace(META.device.name, json.dumps(name)[1:-1]))
    assert "control character" in refused(path)


def test_a_recording_of_old_has_no_hash_of_its_table(path: Path) -> None:
    damage_meta(path, table_sha256=None)
    assert recordings.load(path).attempts
    damage_meta(path, measured_by=None)
    found = recordings.load(path).meta.measured_by
    assert (found, found.libraries) == (recordings.MeasuredBy(), "")


def test_a_full_disk_leaves_the_old_recording(path: Path) -> None:
    before = recordings.load(path)
    room = path.stat().st_size + 100  # enough for the table alone
    longer = dataclasses.replace(before.meta, note="long " * 1000)
    message = refused_with_room(room, lambda: recordings.save(path, before.attempts, {}, longer))
    assert message.startswith(f"cannot write the recording {path}: ")
    assert recordings.load(path) == before
