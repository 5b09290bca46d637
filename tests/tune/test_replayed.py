"""Whose recordings a replay takes, by what they answer of what is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.inputs import DEFAULT, NORMAL
from fa_tune.core.model import DeviceInfo
from fa_tune.core.options import MeasureOptions
from fa_tune.core.workload import Workload
from fa_tune.store import recordings
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.session import ProfilerSelection
from tests.tune import fakes
from tests.tune.fakes import H200, Stages
from tests.tune.recorded import WORKLOAD, record

OTHER = dataclasses.replace(H200, name="NVIDIA H100")
OLD, NEW = "2026-01-01T00:00:00+00:00", "2026-03-01T00:00:00+00:00"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "profiles"


def held(folder: Path, name: str, n: int, method: str = "ncu", date: str = OLD) -> Path:
    """A recording of the first `n` configs; its path."""
    record(folder, name, method, date, dict.fromkeys(fakes.keys(n), 1e-3))
    return folder / H200.slug / f"{name}.csv"


def moved(path: Path, device: DeviceInfo) -> None:
    """Make it a recording of another GPU."""
    known = recordings.load(path)
    origin = dataclasses.replace(known.meta.provenance, gpu=device.name)
    meta = dataclasses.replace(known.meta, device=device, provenance=origin)
    recordings.save(path.parents[1] / device.slug / path.name, known.attempts, {}, meta)
    recordings.remove(path)


def made_of_these_kernels(path: Path) -> None:
    known = recordings.load(path)
    sources = kernel_source_sha256("sm80")
    origin = dataclasses.replace(known.meta.provenance, kernel_source_sha256=sources)
    recordings.save(path, known.attempts, {}, dataclasses.replace(known.meta, provenance=origin))


def chosen(
    folder: Path,
    n: int,
    wanted: Sequence[Workload] = (WORKLOAD,),
    progress: Stages | None = None,
    arch: str = "sm_90",
) -> ProfilerSelection:
    """What is replayed for the first `n` configs."""
    machine = fakes.machine(folder.parent, device=None, recordings=folder)
    machine = dataclasses.replace(machine, limits=parse_arch(arch))
    configs = fakes.parsed(fakes.configs(n))
    return choose_profiler(
        MeasureOptions(), machine, progress or Stages(), wanted=wanted, configs=configs
    )


def test_the_gpu_that_holds_most_of_the_configs_is_replayed(folder: Path) -> None:
    held(folder, "tune", 4)
    few = held(folder, "fast", 1, date=NEW)
    made_of_these_kernels(few)
    moved(few, OTHER)
    assert chosen(folder, 4).device == H200
    assert chosen(folder, 1).device == OTHER, "of the present kernels, where both hold all"


def test_a_gpu_that_holds_more_of_the_workloads_comes_first(folder: Path) -> None:
    path = held(folder, "tune", 4)
    few = held(folder, "fast", 1)
    known = recordings.load(few)
    longer = dataclasses.replace(WORKLOAD, causal=True)
    more = [dataclasses.replace(a, workload=longer.key) for a in known.attempts]
    recordings.save(few, [*known.attempts, *more], {}, known.meta)
    moved(few, OTHER)
    assert path.exists()
    assert chosen(folder, 4, (WORKLOAD, longer)).device == OTHER


def test_a_recording_that_does_not_answer_gives_its_method_no_preference(folder: Path) -> None:
    """All are of the same GPU: ncu and events hold the configs, and one by events others, of the
    present kernels."""
    held(folder, "prog_ncu", 3)
    held(folder, "prog_events", 3, "events")
    record(folder, "fast_events", "events", NEW, {fakes.keys(9)[-1]: 1e-3})
    made_of_these_kernels(folder / H200.slug / "fast_events.csv")
    assert chosen(folder, 3).method == "ncu"


def test_what_answers_most_is_named_first_and_is_whose_conditions_are_told(folder: Path) -> None:
    most = held(folder, "tune", 4)
    record(folder, "fast", "ncu", NEW, {fakes.keys(5)[-1]: 1e-3})
    found = chosen(folder, 5)
    assert found.recording is not None
    assert found.recording.path == most
    names = found.source.partition("replayed from ")[2].split(", ")
    assert names == ["nvidia_h200/tune.csv", "nvidia_h200/fast.csv"]


@pytest.mark.parametrize("n", [0, 2])
def test_recordings_of_other_workloads_are_never_told(folder: Path, n: int) -> None:
    """Whether no config is asked for, or none that a recording of the workload holds."""
    record(folder, "theirs", "ncu", OLD, {"sm80:x": 1e-3})
    newer = held(folder, "newer", 2, date=NEW)
    known = recordings.load(newer)
    causal = dataclasses.replace(WORKLOAD, causal=True)
    moved_on = [dataclasses.replace(a, workload=causal.key) for a in known.attempts]
    recordings.save(newer, moved_on, {}, known.meta)
    made_of_these_kernels(newer)
    progress = Stages()
    found = chosen(folder, n, progress=progress)
    assert found.recording is not None
    assert found.recording.label == "nvidia_h200/theirs.csv"
    assert "newer.csv" not in found.source
    assert progress.warnings, "theirs are other kernels"


def test_only_gpus_of_the_architecture_are_replayed(folder: Path) -> None:
    """The kernels of one architecture are not those to choose among on another."""
    path = held(folder, "tune", 4)
    with pytest.raises(NoUsableVariant, match=r"sm_80 GPU: take --arch sm_90"):
        chosen(folder, 4, arch="sm_80")
    older = dataclasses.replace(H200, name="NVIDIA A100", compute_capability=(8, 0))
    moved(path, older)
    held(folder, "tune", 4)
    assert chosen(folder, 4, arch="sm_80").device == older
    assert chosen(folder, 4).device == H200


# What was typed ---------------------------------------------------------------------------------


def test_inputs_that_were_typed_are_not_exchanged(folder: Path) -> None:
    held(folder, "tune", 4)
    machine = fakes.machine(folder.parent, device=None, recordings=folder)
    usual = choose_profiler(MeasureOptions(), machine, Stages(), wanted=[WORKLOAD])
    assert usual.inputs == NORMAL
    typed = MeasureOptions(typed=frozenset({"inputs"}))
    assert typed.inputs == DEFAULT
    with pytest.raises(NoUsableVariant, match="--inputs normal"):
        choose_profiler(typed, machine, Stages(), wanted=[WORKLOAD])


def test_options_that_do_nothing_in_a_replay_are_named(folder: Path) -> None:
    held(folder, "tune", 4)
    machine = fakes.machine(folder.parent, device=None, recordings=folder)
    options = dataclasses.replace(machine.options, typed=frozenset({"device", "arch"}))
    machine = dataclasses.replace(machine, options=options)
    progress = Stages()
    measure = MeasureOptions(runs=3, seed=1, typed=frozenset({"runs", "profiler"}))
    choose_profiler(measure, machine, progress, wanted=[WORKLOAD])
    (note,) = progress.notes
    assert "--runs" in note
    assert "--device" in note
    assert not any(word in note for word in ("--seed", "--arch", "--profiler"))


def test_references_that_were_typed_and_not_recorded_are_named(folder: Path) -> None:
    record(folder, "tune", "ncu", OLD, {fakes.keys(1)[0]: 1e-3, "ref:fa2": 2e-3})
    machine = fakes.machine(folder.parent, device=None, recordings=folder)

    def told(*names: str, typed: bool = True) -> list[str]:
        progress = Stages()
        given = frozenset({"references"} if typed else ())
        measure = MeasureOptions(references=names, typed=given)
        choose_profiler(measure, machine, progress, wanted=[WORKLOAD])
        return progress.notes

    assert told("fa2") == told("fa2", "fa3", typed=False) == []
    (note,) = told("fa2", "fa3", "read")
    assert "fa3,read" in note
    (note,) = told("fa3")
    assert "fa3" in note
