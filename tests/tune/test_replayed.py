"""Whose recordings a replay takes, by what they answer of what is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.inputs import DEFAULT, NORMAL, InputSpec
from fa_tune.core.options import MeasureOptions
from fa_tune.core.workload import Workload
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.session import ProfilerSelection
from tests.tune import fakes
from tests.tune.fakes import H200, Stages
from tests.tune.recorded import NEW, OLD, WORKLOAD, record

OTHER = dataclasses.replace(H200, name="NVIDIA H100")
CAUSAL = dataclasses.replace(WORKLOAD, causal=True)
BOTH = (WORKLOAD, CAUSAL)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "profiles"


def keys(n: int) -> dict[str, float]:
    """The first `n` configs, each with a time."""
    return dict.fromkeys(fakes.keys(n), 1e-3)


def chosen(
    folder: Path,
    n: int = 0,
    wanted: Sequence[Workload] = (WORKLOAD,),
    progress: Stages | None = None,
    arch: str = "sm_90",
    **measure: Any,
) -> ProfilerSelection:
    """What is replayed for the first `n` configs."""
    machine = fakes.machine(folder.parent, device=None, recordings=folder)
    machine = dataclasses.replace(machine, limits=parse_arch(arch))
    configs = fakes.parsed(fakes.configs(n))
    options = MeasureOptions(**measure)
    return choose_profiler(options, machine, progress or Stages(), wanted=wanted, configs=configs)


Made = dict[str, Any]  # of a recording, in the order in which they are named a, b, …


def made(n: int = 1, method: str = "ncu", date: str = OLD, **more: Any) -> Made:
    return {"times": keys(n) if n else {"sm80:x": 1e-3}, "method": method, "date": date, **more}


@pytest.mark.parametrize(
    ("recorded", "n", "wanted", "first"),
    [
        # Most of the workloads, then of the configs.
        (
            [made(4), made(1, device=OTHER, workloads=BOTH)],
            4,
            (WORKLOAD, CAUSAL),
            "b",
        ),
        ([made(4), made(1, date=NEW, device=OTHER, ours=True)], 4, (WORKLOAD,), "a"),
        ([made(4), made(1, date=NEW, device=OTHER, ours=True)], 1, (WORKLOAD,), "b"),
        ([made(2), made(1, "events", workloads=BOTH)], 0, (WORKLOAD,), "a"),
        ([made(2), made(1, "events", workloads=BOTH)], 0, (CAUSAL,), "b"),
        ([made(2), made(1, "events", workloads=BOTH)], 0, BOTH, "b"),
        # Of these configs, whatever else a method holds.
        ([made(0), made(1, "events")], 1, (WORKLOAD,), "b"),
        ([made(0), made(1, "events")], 0, (WORKLOAD,), "a"),
        # Of these kernels, also against ncu; a recording that does not answer says nothing.
        ([made(2), made(2, "events", ours=True)], 2, (WORKLOAD,), "b"),
        ([made(2), made(2, "events"), made(0, "events", ours=True)], 2, (WORKLOAD,), "a"),
        # By ncu, where all else is alike; then the GPU of which most is recorded.
        ([made(1, "events", ours=True), made(1, ours=True, device=OTHER)], 1, (WORKLOAD,), "b"),
        ([made(1, date=NEW, device=OTHER), made(2)], 0, (), "b"),
        # The usual inputs are trained ones, and normal ones where more is recorded of them.
        ([made(1), made(1, inputs="trained")], 1, (WORKLOAD,), "b"),
        ([made(1, workloads=BOTH), made(1, inputs="trained")], 1, (CAUSAL,), "a"),
        ([made(1), made(1, inputs="trained")], 1, (CAUSAL,), "a"),
        ([made(1, inputs="falling"), made(1)], 1, (WORKLOAD,), "b"),
        # What answers is named first, and a sustained time answers nothing.
        ([made(1, date=NEW), made(4)], 5, (WORKLOAD,), "b"),
        ([made(2, "sustained", NEW), made(1, "events")], 2, (WORKLOAD,), "b"),
    ],
)
def test_what_answers_most_is_replayed(
    folder: Path, recorded: list[Made], n: int, wanted: tuple[Workload, ...], first: str
) -> None:
    for name, one in zip("abc", recorded, strict=False):
        record(folder, name, **one)
    found = chosen(folder, n, wanted)
    assert found.recording.path.stem == first
    used = recorded["abc".index(first)]
    assert (found.device, found.method) == (used.get("device", H200), used["method"])
    assert str(found.inputs) == used.get("inputs", "normal")
    names = found.source.partition("replayed from ")[2].split(", ")
    assert names[0] == found.recording.label
    methods = {r.meta.provenance.method for r in found.recordings}
    assert methods == {found.method}, "methods are not mixed"


def test_a_gpus_own_folder_is_replayed(folder: Path) -> None:
    record(folder, "a", **made(2))
    record(folder, "b", **made(1, device=OTHER))
    assert chosen(folder / OTHER.slug).device == OTHER


def test_inputs_that_are_asked_for_are_replayed_or_refused(folder: Path) -> None:
    for inputs in ("normal", "falling"):
        record(folder, inputs, **made(inputs=inputs))
    falling = chosen(folder, 1, inputs=InputSpec.parse("falling"))
    assert [r.meta.inputs for r in falling.recordings] == ["falling"]
    assert "on falling inputs" in falling.source
    with pytest.raises(NoUsableVariant, match="no recording has sink inputs"):
        chosen(folder, 1, inputs=InputSpec.parse("sink"))


@pytest.mark.parametrize("n", [0, 2])
def test_recordings_of_other_workloads_are_never_told(folder: Path, n: int) -> None:
    """Whether no config is asked for, or none that a recording of the workload holds."""
    record(folder, "theirs", **made(0))
    record(folder, "newer", **made(2, date=NEW, ours=True, workloads=(CAUSAL,)))
    found = chosen(folder, n)
    assert found.recording.label == "nvidia_h200/theirs.csv"
    assert "newer.csv" not in found.source
    assert "earlier kernel sources" in found.source
    progress = Stages()
    chosen(folder, n, (dataclasses.replace(WORKLOAD, batch=3),), progress)
    assert not progress.warnings, "of recordings that are not replayed"


def test_only_gpus_of_the_architecture_are_replayed(folder: Path) -> None:
    """The kernels of one architecture are not those to choose among on another."""
    record(folder, "tune", **made(4))
    with pytest.raises(NoUsableVariant, match=r"sm_80 GPU: take --arch sm_90"):
        chosen(folder, 4, arch="sm_80")
    older = dataclasses.replace(H200, name="NVIDIA A100", compute_capability=(8, 0))
    record(folder, "tune", **made(4, device=older))
    assert chosen(folder, 4, arch="sm_80").device == older
    assert chosen(folder, 4).device == H200


# What was typed ---------------------------------------------------------------------------------


def test_inputs_that_were_typed_are_not_exchanged(folder: Path) -> None:
    record(folder, "tune", **made(4))
    assert chosen(folder).inputs == NORMAL
    assert MeasureOptions().inputs == DEFAULT
    with pytest.raises(NoUsableVariant, match="--inputs normal"):
        chosen(folder, typed=frozenset({"inputs"}))


def test_options_that_do_nothing_in_a_replay_are_named(folder: Path) -> None:
    record(folder, "tune", **made(4))
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
