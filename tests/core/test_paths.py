"""Kernels and recordings are found in a checkout and in an installed package, and only there."""

from pathlib import Path

import pytest

from fa_tune.core import paths
from fa_tune.core.errors import ToolMissing


def _package(root: Path) -> Path:
    package = root / "fa_tune"
    package.mkdir()
    return package


def test_this_checkout_is_used() -> None:
    assert paths.kernels_dir() == Path(__file__).parents[2] / "kernels"
    assert (paths.kernels_dir() / "ptx").is_dir()


def test_checkout_wins_over_packaged_copy(tmp_path: Path) -> None:
    package = _package(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "kernels").mkdir()
    (package / "_kernels").mkdir()
    assert paths._find("kernels", "_kernels", package) == tmp_path / "kernels"


def test_installed_package_ignores_a_neighbour_of_the_same_name(tmp_path: Path) -> None:
    package = _package(tmp_path)
    (tmp_path / "kernels").mkdir()
    (package / "_kernels").mkdir()
    assert paths._find("kernels", "_kernels", package) == package / "_kernels"


def test_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ToolMissing, match="kernels/ folder is missing"):
        paths._find("kernels", "_kernels", _package(tmp_path))
