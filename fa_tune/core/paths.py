"""Where the kernel sources and the shipped recordings are, a source checkout first, then the
copies packaged with the wheel; and the cache folder."""

from __future__ import annotations

from pathlib import Path

import platformdirs

from fa_tune.core.errors import ToolMissing

_PACKAGE = Path(__file__).resolve().parents[1]


def _find(checkout: str, packaged: str, package: Path = _PACKAGE) -> Path:
    root = package.parent
    # Beside an installed package, a folder called kernels/ would be somebody else's.
    if (root / "pyproject.toml").is_file() and (root / checkout).is_dir():
        return root / checkout
    if (package / packaged).is_dir():
        return package / packaged
    raise ToolMissing(f"the {checkout}/ folder is missing from this installation; reinstall")


def kernels_dir() -> Path:
    """The folder that holds `ptx/`, `tile/` and the families' kernels; raises ToolMissing."""
    return _find("kernels", "_kernels")


def csrc_dir() -> Path:
    """The folder of the C++ sources, of which `core/` launches kernels; raises ToolMissing."""
    return _find("csrc", "_csrc")


def profiles_dir() -> Path:
    """The folder of recordings that replay and the tests use; raises ToolMissing."""
    return _find("profiles", "_profiles")


def default_cache_dir() -> Path:
    """The user's cache folder of this program."""
    return Path(platformdirs.user_cache_dir("fa-tune"))


def ready_library(name: str, package: Path = _PACKAGE) -> Path | None:
    """The C++ library that a platform wheel has of this name, ready-made; None in a checkout."""
    path = package / "_native" / f"lib{name}.so"
    return path if path.is_file() else None
