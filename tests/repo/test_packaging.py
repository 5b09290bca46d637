"""`pip install .` and `pip install -e .` give a working fa-tune with its kernels and recordings."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tests.project_files import ROOT, project_files

pytest.importorskip("hatchling", reason="the build back end comes with the dev extra")

ASK = "from fa_tune.core import paths; print(paths.kernels_dir()); print(paths.profiles_dir())"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as a clone has it: without build outputs and ignored files."""
    folder = tmp_path_factory.mktemp("clone")
    for path in project_files():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, folder / path)
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fresh environment that sees this one's packages, but not this checkout."""
    venv.EnvBuilder(with_pip=False, symlinks=True).create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    ask = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    folder = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    Path(folder, "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def _install(python: Path, *arguments: str) -> None:
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run(
        [str(python), "-m", "pip", "install", *options, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def _folders(python: Path) -> list[Path]:
    done = subprocess.run(
        [str(python), "-c", ASK], cwd=python.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return [Path(line) for line in done.stdout.splitlines()]


def test_wheel_holds_kernels_and_recordings(checkout: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--no-build-isolation", "--no-deps"]
    done = subprocess.run(
        [*command, "--no-index", "-w", str(tmp_path), str(checkout)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    names = set(zipfile.ZipFile(next(tmp_path.glob("fa_tune-*.whl"))).namelist())
    for path in project_files():
        folder, _, rest = path.partition("/")
        packed = {"fa_tune": path, "kernels": f"fa_tune/_kernels/{rest}"}
        packed["csrc"] = f"fa_tune/_csrc/{rest}"
        packed["profiles"] = f"fa_tune/_profiles/{rest}"
        if folder in packed:
            assert packed[folder] in names, path
    assert not [name for name in names if name.startswith(("tests/", "tools/"))]


def test_installed_program_finds_its_own_files(checkout: Path, python: Path) -> None:
    _install(python, str(checkout))
    folders = _folders(python)
    assert [folder.name for folder in folders] == ["_kernels", "_profiles"]
    assert (folders[0] / "sm80" / "fwd" / "entry.cu").is_file()
    assert python.parent.joinpath("fa-tune").is_file()


def test_editable_program_uses_the_checkout(checkout: Path, python: Path) -> None:
    _install(python, "--editable", str(checkout))
    assert _folders(python) == [checkout / "kernels", checkout / "profiles"]
