"""The files that a kernel is made of: its translation unit and all it includes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from fa_tune.core import paths
from fa_tune.core.errors import ToolMissing

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', re.MULTILINE)


def closure(*entries: str, root: Path | None = None) -> Mapping[str, str]:
    """Include name -> text of `entries` (`sm80/entry.cu`) and of what they include, directly
    or not.  A file in a shared folder that nobody includes is not among them, so adding it
    changes no family's hash.

    Names are relative to `root`, the `kernels/` folder if None.  Raises ToolMissing if a file
    is not there, which an installation that is complete cannot lack.
    """
    folder = root or paths.kernels_dir()
    found: dict[str, str] = {}
    todo = list(entries)
    while todo:
        name = str(PurePosixPath(todo.pop()))
        if name in found:
            continue
        try:
            found[name] = (folder / name).read_text(encoding="utf-8")
        except OSError as error:
            raise ToolMissing(
                f"the kernel source {folder / name} cannot be read: {error.strerror}"
            ) from None
        todo += _INCLUDE.findall(found[name])
    return dict(sorted(found.items()))
