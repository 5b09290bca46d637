"""What is done after an import is done once, and the module is as it would be."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fa_tune.core.after_import import AfterImport

NAME = "module_of_a_test"


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    (tmp_path / f"{NAME}.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.setitem(sys.modules, NAME, sys)  # restored afterwards
    del sys.modules[NAME]
    importlib.invalidate_caches()
    return []


def test_it_is_done_when_the_module_is_there(seen: list[ModuleType]) -> None:
    finder = AfterImport({NAME: seen.append, "module_that_is_not_there": seen.append})
    finder.install()
    assert not seen
    module = importlib.import_module(NAME)
    assert seen == [module]
    assert module.value == 1
    assert "exec_module" not in vars(module.__loader__)
    importlib.reload(module)
    assert len(seen) == 1
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("module_that_is_not_there")
    finder.remove()
    assert finder not in sys.meta_path


def test_several_do_what_each_has_to_do(seen: list[ModuleType]) -> None:
    finders = [AfterImport({NAME: seen.append}) for _ in range(3)]
    for finder in finders:
        finder.install()
    module = importlib.import_module(NAME)
    assert seen == [module] * 3
    assert "exec_module" not in vars(module.__loader__)


def test_it_is_done_at_once_for_what_is_imported(seen: list[ModuleType]) -> None:
    module = importlib.import_module(NAME)
    AfterImport({NAME: seen.append}).install()
    assert seen == [module]


def test_a_module_that_fails_fails_alike(seen: list[ModuleType], tmp_path: Path) -> None:
    (tmp_path / f"{NAME}.py").write_text("raise ZeroDivisionError\n")
    AfterImport({NAME: seen.append}).install()
    with pytest.raises(ZeroDivisionError):
        importlib.import_module(NAME)
    assert not seen
    (tmp_path / f"{NAME}.py").write_text("value = 22\n")
    importlib.invalidate_caches()
    importlib.import_module(NAME)
    assert len(seen) == 1
