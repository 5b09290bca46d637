"""A copy of the package with an exercise's changes, to be run in a process of its own: what an
extension needs is counted by what it changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.project_files import ROOT

Edit = tuple[str, str]  # what stands there, and what takes its place


def run(
    folder: Path,
    script: str,
    *,
    new: Mapping[str, str],
    edits: Mapping[str, Sequence[Edit]] | None = None,
) -> str:
    """What a script prints that runs with the package as changed: `new` files, which no path may
    have yet, and `edits` of existing ones.  Fails if the script does."""
    copied = folder / "fa_tune"
    shutil.copytree(ROOT / "fa_tune", copied, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in new.items():
        file = folder / path
        assert not file.exists(), path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    for path, changes in (edits or {}).items():
        text = (folder / path).read_text(encoding="utf-8")
        for old, instead in changes:
            assert text.count(old) == 1, f"{path}: {old!r}"
            text = text.replace(old, instead)
        (folder / path).write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
