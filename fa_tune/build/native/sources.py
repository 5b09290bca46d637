"""The files that the C++ core, and the torch operator on top of it, are made of."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fa_tune.core import paths
from fa_tune.core.errors import ToolMissing
from fa_tune.families.sources import INCLUDE, closure

SUFFIXES = (".h", ".hpp", ".cpp")


def core_sources() -> Mapping[str, str]:
    """Name -> text of every file of the core.  Names are relative to one folder, which is the
    include path of all; every `.cpp` is a translation unit of C++17.  Raises ToolMissing for an
    installation without them."""
    core, kernels = paths.csrc_dir() / "core", paths.kernels_dir()
    files = {str(p.relative_to(core)): p for p in sorted(core.rglob("*")) if p.suffix in SUFFIXES}
    texts = _texts(files)
    included = {name for text in texts.values() for name in INCLUDE.findall(text)}
    # The kernels' parameters, which the core fills in.
    params = [name for name in included - texts.keys() if (kernels / name).is_file()]
    return {**texts, **closure(*params)}


def torch_sources() -> Mapping[str, str]:
    """The core's and those of the torch operator; see `core_sources`."""
    folder = paths.csrc_dir() / "torch"
    files = {p.name: p for p in sorted(folder.iterdir()) if p.suffix in SUFFIXES}
    return {**core_sources(), **_texts(files)}


def _texts(files: Mapping[str, Path]) -> Mapping[str, str]:
    try:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    except OSError as error:
        raise ToolMissing(
            f"the source {error.filename} of the C++ library cannot be read: {error.strerror}"
        ) from None
