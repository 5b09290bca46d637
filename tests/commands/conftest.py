"""A console, and an environment without a GPU in which nothing of the user's is touched."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fa_tune.build.cache import ArtifactStore
from fa_tune.core.options import SearchOptions
from fa_tune.tune.results import SearchResult
from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put, Stub
from tests.conftest import lend_kernels

VARIABLES = ("FA_TUNE_REGISTRY", "FA_TUNE_NCU", "FA_TUNE_RECORDINGS", "KERNELS")


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home" / name.lower()))
    monkeypatch.setenv("FA_TUNE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("fa_tune.core.devices.find_device", lambda index=0: None)
    monkeypatch.setattr("fa_tune.tune.session.core_library", lambda: None)  # takes a compiler
    monkeypatch.setattr("fa_tune.commands.shared.progress.EVERY_S", math.inf)  # a slow machine's
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SearchOptions]:
    """Options of the searches, none of which is made."""
    found: list[SearchOptions] = []

    def search(options: SearchOptions, *_: Any, **__: Any) -> SearchResult:
        found.append(options)
        return fakes.search_result()

    monkeypatch.setattr("fa_tune.tune.flow.search", search)
    return found


@pytest.fixture
def known_kernels(artifacts: ArtifactStore, tmp_path: Path) -> None:
    """What other tests have compiled is not compiled again."""
    lend_kernels(artifacts, tmp_path / "cache")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a `Stub` that returns a result in the place of a function."""

    def put(place: str, result: Any) -> Stub:
        made = Stub(result)
        monkeypatch.setattr(place, made)
        return made

    return put


@pytest.fixture
def console(capsys: pytest.CaptureFixture[str]) -> Console:
    return Console(capsys)


@pytest.fixture
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are drawn, with configs in full."""
    monkeypatch.setenv("COLUMNS", "400")
