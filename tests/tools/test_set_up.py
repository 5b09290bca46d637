"""./run in a fresh checkout, for real but offline: what is needed is there already, or missing.

The checkout's program is a stand-in that prints its arguments; all the rest is the real thing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import environment
from tests.project_files import ROOT, project_files

PROGRAM = """
import multiprocessing, sys

def main():
    if "pool" in sys.argv:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            print(pool.map(abs, [-3]))
    print(sys.argv[1:])
    return 7 if "fail" in sys.argv else 0
"""

Start = Callable[..., subprocess.CompletedProcess[str]]


def _checkout(folder: Path) -> Path:
    for path in project_files():
        if path in ("run", "check", "pyproject.toml") or path.startswith("tools/"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, folder / path)
    (folder / "fa_tune").mkdir()
    (folder / "fa_tune" / "__init__.py").touch()
    (folder / "fa_tune" / "__main__.py").write_text(PROGRAM)
    return folder


def _environment(folder: Path, **more: str) -> dict[str, str]:
    """No network for pip, no GPU, nothing of the caller's settings."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PIP_NO_INDEX": "1",
        "PIP_CONFIG_FILE": os.devnull,
        "FA_TUNE_SETUP_CUDA": "none",
        "FA_TUNE_PYTHON": sys.executable,  # has everything
        **more,
    }


def _run(checkout: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(checkout / "run"), *arguments],
        cwd=checkout.parent,
        env=_environment(checkout.parent, **more),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python without any package, not even pip."""
    folder = tmp_path_factory.mktemp("bare")
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    return str(folder / "bin" / "python")


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with space and quote in its path, set up once for all tests that keep it."""
    checkout = _checkout(tmp_path_factory.mktemp("it's a folder") / "fa tune")
    done = _run(checkout, "first", "start")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['first', 'start']\n", "stdout belongs to the program"
    assert "set-up: making" in done.stderr
    assert "using the packages of" in done.stderr
    return checkout


@pytest.fixture
def fresh(tmp_path: Path) -> Path:
    return _checkout(tmp_path / "checkout")


def test_later_starts_are_silent(ready: Path) -> None:
    done = _run(ready, "again")
    assert (done.returncode, done.stdout, done.stderr) == (0, "['again']\n", "")
    assert _run(ready, "fail").returncode == 7
    script = ready / ".venv" / "bin" / "fa-tune"
    done = subprocess.run([str(script), "x"], capture_output=True, text=True, env={})
    assert done.stdout == "['x']\n", done.stderr
    done = _run(ready, "pool")
    assert (done.returncode, done.stdout) == (0, "[3]\n['pool']\n"), done.stderr


def test_run_by_link_from_elsewhere(ready: Path, tmp_path: Path) -> None:
    link = tmp_path / "fa-tune"
    link.symlink_to(ready / "run")
    done = subprocess.run(
        [str(link), "x"], cwd=tmp_path, env=_environment(tmp_path), capture_output=True, text=True
    )
    assert done.stdout == "['x']\n", done.stderr


def test_new_requirements_are_looked_at_again(ready: Path) -> None:
    pyproject = ready / "pyproject.toml"
    text = pyproject.read_text()
    try:
        pyproject.write_text(text.replace('"click>=8.1"', '"click>=8.1", "no-such-thing"'))
        done = _run(ready, "x")
        assert done.returncode == 3
        assert "error: cannot install no-such-thing: no package index" in done.stderr
    finally:
        pyproject.write_text(text)
    done = _run(ready, "x")
    assert (done.returncode, done.stderr) == (0, "")


def test_broken_environment_is_made_anew(ready: Path) -> None:
    python = ready / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to("/nowhere/python")
    done = _run(ready, "x")
    assert done.returncode == 0, done.stderr
    assert "does not work: making it anew" in done.stderr


def test_killed_set_up_heals(fresh: Path) -> None:
    process = subprocess.Popen(
        [str(fresh / "run"), "x"],
        env=_environment(fresh.parent),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    note = fresh / ".venv" / ".fa-tune" / "unfinished"
    deadline = time.monotonic() + 60
    while not note.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    done = _run(fresh, "x")
    assert (done.returncode, done.stdout) == (0, "['x']\n"), done.stderr
    assert "was cut off: making it anew" in done.stderr


def test_two_first_starts_at_once(fresh: Path) -> None:
    both = [
        subprocess.Popen(
            [str(fresh / "run"), name],
            env=_environment(fresh.parent),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in "ab"
    ]
    answers = [process.communicate(timeout=120) for process in both]
    assert [out for out, _ in answers] == ["['a']\n", "['b']\n"], answers
    assert sum("set-up: making" in err for _, err in answers) == 1


@pytest.mark.long
def test_packages_of_pythonpath_count_until_they_are_gone(fresh: Path, bare_python: str) -> None:
    folder = next(p for p in sys.path if p.endswith("site-packages"))
    done = _run(fresh, "x", FA_TUNE_PYTHON=bare_python, PYTHONPATH=folder)
    assert (done.returncode, done.stdout) == (0, "['x']\n"), done.stderr
    done = _run(fresh, "x", FA_TUNE_PYTHON=bare_python)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("fa-tune set-up:"))
    assert line.startswith("error: cannot install ")
    assert "PIP_FIND_LINKS" in line


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """The Python of a CUDA container: has all that a GPU asks for, though not where a plain
    environment would look, and its torch is older than what would be installed."""
    folder = tmp_path / "container"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    site_packages = next(folder.glob("lib/python3*/site-packages"))
    needed = {environment.name_of(r): r for r in environment.requirements(["cuda13"])}
    for name, requirement in needed.items():
        least = re.findall(r">=([\d.]+)", requirement)[-1]
        version = "2.8.0+cu130" if name == "torch" else least
        metadata = site_packages / f"{name.replace('-', '_')}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def test_container_with_torch_needs_no_network(fresh: Path, container: Path) -> None:
    python = str(container / "bin" / "python")
    done = _run(fresh, "x", FA_TUNE_PYTHON=python, FA_TUNE_SETUP_CUDA="13")
    assert (done.returncode, done.stdout) == (0, "['x']\n"), done.stderr
    assert f"using the packages of {python}" in done.stderr


def test_no_python_is_one_line(fresh: Path, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env", "dirname", "readlink", "grep"):
        (tools / name).symlink_to(str(shutil.which(name)))
    (tools / "python3").write_text("#!/bin/sh\nexit 1\n")  # an old one: it answers "too old"
    (tools / "python3").chmod(0o755)
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    command = [str(tools / "bash"), str(fresh / "run"), "x"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 3
    assert done.stderr.startswith("error: no Python >= 3.11 on PATH")
    assert done.stderr.count("\n") == 1
    named = subprocess.run(
        command, env=environment | {"FA_TUNE_PYTHON": "snake"}, capture_output=True, text=True
    )
    assert named.returncode == 3
    assert named.stderr == "error: FA_TUNE_PYTHON=snake is no Python >= 3.11\n"


def test_place_that_cannot_be_written_is_one_line(fresh: Path) -> None:
    done = _run(fresh, "x", FA_TUNE_VENV="/dev/null/venv")
    assert done.returncode == 3
    assert done.stderr.startswith("error: set-up failed at /dev/null")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("driver", "present", "forced", "expected"),
    [
        (None, None, "", None),
        ((11, 8), None, "", None),
        ((12, 4), None, "", 12),
        ((13, 0), None, "", 13),
        ((14, 1), None, "", 13),
        ((13, 0), 12, "", 12),  # what is there decides …
        ((12, 4), 13, "", 12),  # … unless the driver cannot run it
        (None, 13, "", None),
        ((13, 0), 12, "13", 13),
        ((13, 0), 12, "none", None),
    ],
)
def test_choose_cuda(
    driver: tuple[int, int] | None, present: int | None, forced: str, expected: int | None
) -> None:
    assert environment.choose_cuda(driver, present, forced) == expected


def test_forced_cuda_must_be_known(fresh: Path) -> None:
    done = _run(fresh, "x", FA_TUNE_SETUP_CUDA="11")
    assert done.returncode == 3
    assert done.stderr.endswith("error: FA_TUNE_SETUP_CUDA=11 is none of: none, 12, 13\n")


@pytest.mark.parametrize(
    ("packages", "expected"),
    [
        ({"torch": ("2.11.0+cu130", "")}, 13),
        ({"torch": ("2.10.0", "nvidia-cuda-nvrtc-cu12==12.8.93; platform_system=='Linux'")}, 12),
        ({"torch": ("2.13.0+cpu", "")}, None),
        ({"cupy-cuda12x": ("14.2.0", "")}, 12),
        ({"click": ("8.2", "")}, None),
    ],
)
def test_cuda_of_present_packages(
    packages: dict[str, tuple[str, str]],
    expected: int | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, (version, needs) in packages.items():
        metadata = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        lines = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        metadata.write_text(lines + (f"Requires-Dist: {needs}\n" if needs else ""))
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert environment.cuda_present() == expected


def test_development_tools_are_pinned_within_their_ranges() -> None:
    lines = (ROOT / "tools" / "constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    pins = {environment.name_of(name): version for name, version in pins.items()}
    names = set()
    for text in environment.requirements(["dev"]):
        names.add(environment.name_of(text))
        if not text.startswith("cuda"):
            assert Requirement(text).specifier.contains(pins[environment.name_of(text)]), text
    assert {"pytest", "hypothesis", "ruff", "mypy"} <= names, "fa-tune[test] is expanded"
    assert not names & {"torch", "cupy-cuda12x", "cupy-cuda13x"}, "a GPU asks for these"
