"""What is begun before the command itself is loaded."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from fa_tune import cli
from fa_tune.profile.ncu.profiler import EARLY
from fa_tune.tune import early
from fa_tune.workers.prefork import PREFORK

CONFIG = "(FP16, 128, 64, 64, 4): async"


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver and an ncu, and workers that load nothing."""
    (tmp_path / "driver").touch()
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho 'Nsight Compute Version 2025.3.1'; [ $# = 1 ] || sleep 60\n")
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(cli, "_DRIVER", str(tmp_path / "driver"))
    monkeypatch.setattr(early, "WARM_UP_MODULES", ())
    return tmp_path


def test_profile_has_its_workers_before_it_is_loaded(there: Path) -> None:
    with cli._early(["profile", CONFIG]):
        prefork, profiler = PREFORK.get(), EARLY.get()
        assert profiler._ahead.is_waiting
        worker = prefork._waiting
        assert worker.poll() is None
    assert worker.returncode is not None, "nothing is left waiting"
    assert not profiler._ahead.is_waiting
    assert PREFORK.get() is None
    assert EARLY.get() is None
    (there / "driver").unlink()
    with cli._early(["profile", CONFIG]):
        assert PREFORK.get() is None


@pytest.mark.parametrize("option", ["--profiler=events", "--metrics", "--export"])
def test_ncu_is_not_begun_where_something_else_measures(there: Path, option: str) -> None:
    with cli._early(["profile", CONFIG, option]):
        assert PREFORK.get() is not None
        assert EARLY.get() is None


@pytest.mark.parametrize(
    "words",
    [
        ["profile", "--help"],
        ["profile", CONFIG, "--ray", "auto"],
        ["bench", "--devices=all"],
        ["registry", "show"],
        [],
    ],
)
def test_nothing_is_begun_for_what_would_not_use_it(there: Path, words: list[str]) -> None:
    with cli._early(words):
        assert PREFORK.get() is None


def test_the_command_runs_within(there: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = []

    @contextmanager
    def begun(words: list[str]) -> Iterator[None]:
        inside.append(words)
        yield

    monkeypatch.setattr(importlib.import_module(cli._BEGUN_EARLY), "begun_early", begun)
    told = CliRunner().invoke(cli.cli, ["profile", "nonsense"])
    assert told.exit_code == 2
    assert inside == [["profile", "nonsense"]]
