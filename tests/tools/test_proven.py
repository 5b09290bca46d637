"""Which of many builds a run compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.project_files import ROOT, project_files
from tests.tools import proven
from tests.tools.required import required_builds

BUILDS = required_builds("sm_86")
FEW = BUILDS[:1]


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of BUILDS have passed."""
    monkeypatch.setattr(proven, "NOTES", tmp_path / "proven.json")
    monkeypatch.setenv(proven.ALL, "1")
    monkeypatch.setenv(proven.RECORD, "1")
    proven.passed("some", BUILDS)
    monkeypatch.delenv(proven.ALL)
    monkeypatch.delenv(proven.RECORD)


def test_of_builds_that_passed_a_few_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    assert proven.due("some", BUILDS, FEW) == FEW
    monkeypatch.setenv(proven.ALL, "1")
    assert proven.due("some", BUILDS, FEW) == BUILDS


def test_of_others_all_are_due() -> None:
    for name, builds in (("some", BUILDS[1:]), ("others", BUILDS), ("others", BUILDS)):
        with pytest.warns(match=f"no note of {name}"):
            assert proven.due(name, builds, FEW) == builds
        proven.passed(name, builds)


@pytest.mark.filterwarnings("ignore:no note of some")
def test_another_code_makes_all_due_and_another_comment_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    family = type(proven.families.get("sm80"))
    files = dict(proven.families.get("sm80").source_files())
    name = next(iter(files))
    proven.note("emulated", proven.emulated_identity())
    for text, same in {"// a remark": True, "int more();": False}.items():
        changed = {**files, name: f"{files[name]}\n{text}\n"}
        monkeypatch.setattr(family, "source_files", lambda self, found=changed: found)
        assert proven.due("some", BUILDS, FEW) == (FEW if same else BUILDS)
        assert proven.is_noted("emulated", proven.emulated_identity()) == same


def test_another_test_or_plan_makes_all_emulated_tests_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = proven.emulated_identity()
    for prefix in proven.EMULATED:
        path = next(p for p in project_files() if p.startswith(prefix))
        changed = tmp_path / path
        changed.parent.mkdir(parents=True, exist_ok=True)
        changed.write_bytes((ROOT / path).read_bytes() + b"#")
        with monkeypatch.context() as patch:
            patch.setattr(proven, "project_files", lambda path=path: (path,))
            same = proven.emulated_identity()
            patch.setattr(proven, "ROOT", tmp_path)
            assert proven.emulated_identity() != same
    assert proven.emulated_identity() == before
