"""A copy of the package with an exercise's changes, to be run in a process of its own: what an
extension needs is counted by what it changes."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.project_files import ROOT

Edit = tuple[str, str]  # what stands there, and what takes its place
SOURCES = ("csrc", "kernels", "pyproject.toml", "tests/project_files.py")


def run(
    folder: Path,
    script: str,
    *,
    new: Mapping[str, str] | None = None,
    edits: Mapping[str, Sequence[Edit]] | None = None,
    copied: Sequence[str] = (),
) -> str:
    """What a script prints that runs with the package, and what else is `copied`, as changed: `new`
    files, which no path may have yet, and `edits` of existing ones.  Fails if the script does."""
    for path in ("fa_tune", *copied):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / path).is_dir():
            shutil.copytree(ROOT / path, folder / path)  # times, too: what was compiled serves
        else:
            shutil.copy(ROOT / path, folder / path)
    for path, text in (new or {}).items():
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


def quick_compiler(folder: Path, cxx: str | None) -> str:
    """A compiler that does not optimise, whatever it is told."""
    quick = folder / "c++"  # the last option of a kind holds
    quick.write_text(f'#!/bin/sh\nexec {cxx} "$@" -O0\n', encoding="utf-8")
    quick.chmod(0o755)
    return str(quick)


def changed(folder: Path) -> set[str]:
    """The existing files that are other ones in a copy, those that were generated included."""
    files = (file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    return {
        str(name)
        for name in files
        if (ROOT / name).is_file()
        and name.suffix != ".pyc"
        and (ROOT / name).read_bytes() != (folder / name).read_bytes()
    }
