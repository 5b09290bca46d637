"""GPU tests: marked `gpu`, skipped without a device, and never silently.  And a package with one
family of kernels, for tests that count on it."""

from __future__ import annotations

import functools
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Collection, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.core.paths import profiles_dir
from fa_tune.lab import space_table
from fa_tune.store import journal, recordings

# Threads of torch wait for each other busily: tests side by side would take many times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before torch compiles, it would start processes, and try out instructions for ten seconds.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")

# No test hangs on time; `./check quick` tries fewer examples.
hypothesis.settings.register_profile("full", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=10)
hypothesis.settings.load_profile("full")

PROBE = Path(__file__).parents[1] / "tools" / "gpu_probe.py"
LEAST = (8, 0)  # compute capability
NO_DEVICE = "no CUDA device of compute capability 8.0 or later"

_device = pytest.StashKey[bool]()


def kept_folder(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, name: str
) -> Path:
    """A folder for all tests and workers, kept between runs where pytest keeps anything: what was
    compiled once is not again.  FA_TUNE_TEST_CACHE names another."""
    given = os.environ.get("FA_TUNE_TEST_CACHE")
    if given:
        return Path(given)
    cache = getattr(request.config, "cache", None)
    return Path(cache.mkdir(name)) if cache else tmp_path_factory.mktemp(name)


@pytest.fixture(scope="session")
def artifacts(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ArtifactStore:
    """One store of compiled kernels."""
    return ArtifactStore(kept_folder(request, tmp_path_factory, "artifacts"))


def lend_kernels(artifacts: ArtifactStore, cache_dir: Path) -> None:
    """Let a cache folder of a test's own have the kernels of `artifacts`, and nothing else."""
    cache_dir.mkdir(parents=True, exist_ok=True)
    artifacts.path.mkdir(parents=True, exist_ok=True)
    (cache_dir / artifacts.path.name).symlink_to(artifacts.path, target_is_directory=True)


@pytest.fixture(scope="session", autouse=True)
def _shipped_tables_are_parsed_once() -> Iterator[None]:
    """Each search without a GPU reads all recordings, which takes seconds, and as long to show the
    spaces."""
    shipped, parse = profiles_dir().resolve(), recordings._with_table
    parsed: dict[Any, recordings.Recording] = {}
    rows_of, rows = space_table._rows, dict[str, tuple[space_table.SpaceRow, ...]]()

    def rows_once(
        path: Path, text: str, meta: space_table.SpaceMeta
    ) -> Iterator[space_table.SpaceRow]:
        if shipped not in path.resolve().parents:
            return rows_of(path, text, meta)
        if text not in rows:
            rows[text] = tuple(rows_of(path, text, meta))
        return iter(rows[text])

    def once(
        path: Path, meta: recordings.Meta, only: Collection[tuple[str, str]] = ()
    ) -> recordings.Recording:
        real = path.resolve()
        if shipped not in real.parents:
            return parse(path, meta, only)
        key = real, frozenset(only), frozenset(families._FAMILIES.items())
        if key not in parsed:
            parsed[key] = parse(path, meta, only)
        return replace(parsed[key], path=path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recordings, "_with_table", once)
        patch.setattr(space_table, "_rows", rows_once)
        patch.setattr(recordings, "_meta_of", functools.cache(recordings._meta_of))
        yield


@pytest.fixture(scope="session", autouse=True)
def _nobody_waits_for_the_disk() -> Iterator[None]:
    """No test cuts the power: what a process has written outlives it without."""
    connected = journal._connected

    def quick(path: Path, parameters: str) -> sqlite3.Connection:
        db = connected(path, parameters)
        db.execute("PRAGMA synchronous = OFF")
        return db

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "_connected", quick)
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def only_sm80(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other family, so that what is searched and counted does not change with each new one;
    tests/tune/two_families is about several."""
    monkeypatch.setattr(families, "_FAMILIES", {"sm80": families.get("sm80")})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-gpu",
        action="store_true",
        help="fail at once when there is no GPU for the tests marked gpu",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--require-gpu") and not _has_device(config):
        raise pytest.UsageError(f"--require-gpu: {NO_DEVICE}")


def _has_device(config: pytest.Config) -> bool:
    """Asked in a child: this process stays free of the CUDA driver."""
    if _device not in config.stash:
        done = subprocess.run([sys.executable, str(PROBE)], capture_output=True, text=True)
        capabilities = (
            json.loads(done.stdout)["compute_capabilities"] if not done.returncode else []
        )
        config.stash[_device] = any(tuple(c) >= LEAST for c in capabilities)
    return config.stash[_device]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The longest first, so that no worker is left with one of them at the end.
    items.sort(key=lambda item: not any(map(item.get_closest_marker, ("long", "all_kernels"))))
    for item in items:
        if item.get_closest_marker("gpu"):
            # One worker for all of them: tests side by side would disturb each other's device.
            if config.pluginmanager.hasplugin("xdist"):
                item.add_marker(pytest.mark.xdist_group("gpu"))
            if not _has_device(config):
                item.add_marker(pytest.mark.skip(reason=NO_DEVICE))


@pytest.hookimpl(wrapper=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    yield
    reports = terminalreporter.stats.get("skipped", [])
    skipped = [r for r in reports if isinstance(r, pytest.TestReport) and "gpu" in r.keywords]
    if skipped:
        many = "tests" if len(skipped) > 1 else "test"
        line = f"{len(skipped)} GPU {many} skipped: {NO_DEVICE}"
        terminalreporter.write_sep("=", line, yellow=True, bold=True)
