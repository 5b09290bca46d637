"""Each line of `doctor`, on machines that lack this or that."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module, metadata
from pathlib import Path

import pytest

from fa_tune.build import nvrtc
from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.options import MachineOptions
from fa_tune.profile.base import MeasurePlan, OnStep
from fa_tune.tune.machine_check import doctor as examine
from fa_tune.tune.outputs import registry_path
from fa_tune.tune.results import Check
from tests.tune.conftest import World
from tests.tune.fakes import H200, FakeProfiler
from tests.tune.recorded import record

DOCTOR = import_module("fa_tune.tune.machine_check")  # the package's attribute is the function


@pytest.fixture
def world(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A machine with everything; its user has a home of his own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(world.folder / "data"))
    monkeypatch.setattr(DOCTOR, "build_all", lambda *args: world.compiler(*args))
    monkeypatch.setattr(DOCTOR, "EventsProfiler", lambda: FakeProfiler(method="events"))
    monkeypatch.setattr(DOCTOR, "ncu_profiler", lambda ncu: FakeProfiler())
    monkeypatch.setattr(DOCTOR, "core_library", lambda: Path("libfa_tune.so"))
    packages(monkeypatch, {"torch": "2.13.0", "cupy-cuda13x": "14.2.0"})
    return world


def packages(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    """Install just these."""

    def version(name: str) -> str:
        if name in versions:
            return versions[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(DOCTOR.metadata, "version", version)


def doctor(world: World, **options: Path) -> dict[str, Check]:
    some = world.folder / "recorded"
    if not some.exists():
        some.mkdir()
        record(some, "tune_ncu", "ncu", "2026-03-01T00:00:00+00:00", {"sm80:x": 1e-3})
    places = {"cache_dir": world.folder / "cache", "recordings": some, **options}
    machine = MachineOptions(**places)  # type: ignore[arg-type]
    checks = examine(machine, world.progress)
    assert all("\n" not in check.detail for check in checks)
    found = {check.name: check for check in checks}
    assert len(found) == len(checks)
    return found


def test_everything_is_fine(world: World) -> None:
    found = doctor(world)
    assert all(check.ok for check in found.values())
    assert found["Python"].detail == sys.version.split()[0]
    assert found["compiler"].detail == f"NVRTC {nvrtc.version()}"
    assert found["GPU"].detail.startswith("NVIDIA H200, compute capability 9.0, driver 580.65.06")
    assert found["torch"].detail == "torch 2.13.0"
    assert found["cupy"].detail == "cupy-cuda13x 14.2.0"
    assert "a small kernel took" in found["compile and run"].detail
    assert found["ncu"].detail.startswith("ncu 2025.3.1: a small kernel took")


def test_without_a_gpu_nothing_is_wrong(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.device = None
    packages(monkeypatch, {})
    found = doctor(world)
    assert not [name for name, check in found.items() if check.ok is False]
    assert found["GPU"].ok is None
    assert "none found" in found["GPU"].detail
    assert "sm_90" in found["GPU"].detail
    assert found["ncu"] == Check("ncu", None, "not tried without a GPU")
    assert found["torch"].ok is None
    assert "compile and run" not in found


def test_with_a_gpu_its_packages_are_needed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    packages(monkeypatch, {"torchvision": "1.0", "cupyx-other": "1.0"})
    found = doctor(world)
    assert found["torch"].ok is False
    assert found["cupy"].ok is False
    assert found["cupy"].fix


def test_without_a_compiler_there_is_no_launcher(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    fix = "install one, or name it in CXX"

    def missing() -> Path:
        raise ToolMissing(f"no C++ compiler found (c++); {fix}")

    monkeypatch.setattr(DOCTOR, "core_library", missing)
    expected = Check("launcher", False, "no C++ compiler found (c++)", fix)
    assert doctor(world)["launcher"] == expected


def test_without_ncu_the_rest_is_looked_at(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(ncu: Path | None) -> FakeProfiler:
        raise ToolMissing("ncu not found on PATH")

    monkeypatch.setattr(DOCTOR, "ncu_profiler", missing)
    found = doctor(world)
    assert found["ncu"].ok is False
    assert found["ncu"].fix
    assert found["compile and run"].ok
    error = ToolMissing("GPU performance counters are restricted to administrators")
    monkeypatch.setattr(DOCTOR, "ncu_profiler", lambda ncu: FakeProfiler(error=error))
    check = doctor(world)["ncu"]
    assert check.ok is False
    assert "restricted" in check.detail
    assert "--profiler events" in check.fix


def test_gpus_are_listed_where_there_are_several(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = [replace(H200, uuid=f"GPU-{name}") for name in "ab"]
    monkeypatch.setattr("fa_tune.core.devices.visible_devices", lambda: tuple(gpus))
    assert doctor(world)["GPUs"].detail == (
        "0: NVIDIA H200 (GPU-a), 1: NVIDIA H200 (GPU-b); --devices all uses them"
    )
    gpus[1] = replace(gpus[1], name="NVIDIA A100")
    assert doctor(world)["GPUs"].detail.endswith("--devices takes one model")
    monkeypatch.setattr("fa_tune.core.devices.visible_devices", lambda: tuple(gpus[:1]))
    assert "GPUs" not in doctor(world)


def test_a_driver_that_does_not_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(index: int = 0) -> None:
        raise ToolMissing("the NVIDIA driver does not answer: Driver/library version mismatch")

    monkeypatch.setattr("fa_tune.core.devices.find_device", silent)
    found = doctor(world)
    assert found["GPU"].ok is False
    assert "mismatch" in found["GPU"].detail
    assert found["compiler"].ok, "the rest is looked at all the same"
    assert found["ncu"].ok is None


class _Crashes(FakeProfiler):
    def measure(self, plan: MeasurePlan, on_step: OnStep) -> Iterator[Attempt]:
        for subject in plan.subjects:
            yield Attempt(subject, plan.workload.key, Outcome.CRASHED, "no kernel image")


def test_a_kernel_that_does_not_run_or_compile(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DOCTOR, "EventsProfiler", _Crashes)
    check = doctor(world)["compile and run"]
    assert (check.ok, check.detail) == (False, "sm80: crashed: no kernel image")

    class RefusesAll(dict[str, str]):
        def get(self, key: object, default: object = None) -> str:
            return "no such register"

    world.compiler.refused = RefusesAll()
    check = doctor(world)["compile and run"]
    assert check.ok is False
    assert "the default kernel of sm80 did not compile: no such register" in check.detail


def test_folders_are_tried_and_left_empty(world: World) -> None:
    found = doctor(world)
    for name, folder in (
        ("cache folder", world.folder / "cache"),
        ("registry folder", registry_path(None).parent),
    ):
        assert found[name].ok
        assert found[name].detail == str(folder)
        assert list(folder.iterdir()) == []


def test_a_folder_that_cannot_be_written(world: World) -> None:
    (world.folder / "data").write_text("a file")
    found = doctor(world)
    assert found["registry folder"].ok is False
    assert str(world.folder / "data") in found["registry folder"].detail
    assert "FA_TUNE_REGISTRY" in found["registry folder"].fix
    assert os.linesep not in found["registry folder"].detail


def test_a_table_that_was_changed_is_told(world: World) -> None:
    folder = world.folder / "profiles"
    record(folder, "changed", "ncu", "2026-03-01T00:00:00+00:00", {"sm80:x": 1e-3})
    (table,) = folder.rglob("changed.csv")
    table.write_bytes(table.read_bytes().replace(b"1", b"2", 1))
    assert table.name in doctor(world, recordings=folder)["recordings"].detail


@pytest.mark.parametrize("with_gpu", [True, False])
def test_a_damaged_recording_hinders_where_there_is_no_gpu(world: World, with_gpu: bool) -> None:
    meta = world.folder / "profiles" / "nvidia_h200" / "x.meta.json"
    meta.parent.mkdir(parents=True)
    meta.write_text("{")
    if not with_gpu:
        world.device = None
    check = doctor(world, recordings=world.folder / "profiles")["recordings"]
    assert check.ok is (None if with_gpu else False)
    assert "--recordings" in check.fix
    assert "x.meta.json" in check.detail


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("registry", text) for text in ("{", '{"schema": "other"}', "\0")),
        ("journal", "no journal\nat all\n"),
    ],
)
def test_a_damaged_file_needs_attention_and_is_left(world: World, name: str, text: str) -> None:
    journal = world.folder / "cache" / "journal.sqlite"
    path = {"registry": registry_path(None), "journal": journal}[name]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found = doctor(world)[name]
    assert found.ok is False
    assert str(path) in found.detail
    assert found.fix
    assert path.read_text() == text
