"""`pip install .` and `pip install -e .` give a working fa-tune with kernels, recordings and C++
libraries that were compiled with it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.conftest import kept_folder
from tests.project_files import ROOT, project_files

ASK = "from fa_tune.core import paths; print(paths.kernels_dir()); print(paths.profiles_dir())"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a clone has it: without build outputs and ignored files."""
    folder = tmp_path_factory.mktemp("clone")
    for path in project_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    return folder


def _pip(python: Path | str, *arguments: str, **environment: str) -> None:
    command = [str(python), "-m", "pip", *arguments, "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def _wheel(checkout: Path, folder: Path, **environment: str) -> Path:
    command = ["wheel", "--no-build-isolation", "-w", str(folder), str(checkout)]
    _pip(sys.executable, *command, **environment)
    (wheel,) = folder.glob("fa_tune-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(
    checkout: Path, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Built with the host's compiler, whose libraries other tests may have made already."""
    cache = tmp_path_factory.mktemp("cache")
    (cache / "fa-tune").symlink_to(kept_folder(request, tmp_path_factory, "native"))
    return _wheel(checkout, tmp_path_factory.mktemp("wheel"), XDG_CACHE_HOME=str(cache))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fresh environment that sees this one's packages, but not this checkout."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    (folder,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    Path(folder, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _said(python: Path, program: str, **environment: str) -> list[str]:
    done = subprocess.run(
        [str(python), "-c", program],
        cwd=python.parent,
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def _packed() -> set[str]:
    """Where the project's files are in a wheel."""
    of = {"fa_tune": "fa_tune", "kernels": "fa_tune/_kernels", "csrc": "fa_tune/_csrc"}
    of["profiles"] = "fa_tune/_profiles"
    parts = (path.partition("/") for path in project_files())
    return {f"{of[folder]}/{rest}" for folder, _, rest in parts if folder in of}


def test_wheel_holds_kernels_and_recordings(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert _packed() <= names
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]


def test_installed_program_finds_its_own_files_and_compiles_nothing(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    _pip(python, "install", str(wheel))
    folders = [Path(line) for line in _said(python, ASK)]
    assert [folder.name for folder in folders] == ["_kernels", "_profiles"]
    assert (folders[0] / "sm80" / "fwd" / "entry.cu").is_file()
    assert python.parent.joinpath("fa-tune").is_file()
    # No compiler, and no library that was compiled before.
    (tmp_path / "bin").mkdir()
    alone = {"PATH": str(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache"), "CXX": ""}
    program = "import fa_tune.op\nfrom fa_tune.build.native import library as native\n"
    program += "from fa_tune.op.native import NativeOp\n"
    program += "print(NativeOp().core.library._name); print(native.core_library())"
    libraries = [Path(line) for line in _said(python, program, **alone)]
    assert [path.name for path in libraries] == ["libfa_tune_torch.so", "libfa_tune.so"]
    assert {path.parent for path in libraries} == {folders[0].parent / "_native"}
    assert not (tmp_path / "cache").exists()


def test_wheel_of_a_machine_without_a_compiler_is_for_all(checkout: Path, tmp_path: Path) -> None:
    wheel = _wheel(checkout, tmp_path, CXX="no-such-compiler")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".so")]


def test_editable_program_uses_the_checkout(checkout: Path, python: Path) -> None:
    _pip(python, "install", "--no-build-isolation", "--editable", str(checkout))
    assert _said(python, ASK) == [str(checkout / "kernels"), str(checkout / "profiles")]
