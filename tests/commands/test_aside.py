"""Notes, warnings and errors: whole lines for programs, lines that fit for people."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.project_files import ROOT

WRONG = ("search", "--lengths", "a-mixture-that-nobody-knows-and-that-is-long-enough-to-be-cut")


def said(arguments: Sequence[str], folder: Path, width: int | None) -> list[str]:
    """Lines on stderr, which is a terminal of that width or none."""
    own = {f"XDG_{name}_HOME": str(folder / name) for name in ("DATA", "CACHE", "STATE")}
    command = [sys.executable, "-m", "fa_tune", *arguments]
    environment = {**os.environ, **own, "TERM": "xterm", "COLUMNS": str(width or 40)}
    if width is None:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode
        return done.stderr.splitlines()
    ours, theirs = os.openpty()
    with subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=theirs
    ) as process:
        os.close(theirs)
        told = b""
        try:
            while chunk := os.read(ours, 4096):
                told += chunk
        except OSError:  # the terminal is gone with its last user
            pass
        os.close(ours)
    assert process.returncode
    return told.decode().splitlines()


def test_programs_get_an_error_in_one_line_and_terminals_lines_cut_between_words(
    tmp_path: Path,
) -> None:
    whole = said(WRONG, tmp_path, None)
    (error,) = [line for line in whole if line.startswith("error: ")]
    assert len(error) > 80
    assert error == whole[-1]
    shown = said(WRONG, tmp_path, 60)
    at = next(i for i, line in enumerate(shown) if line.startswith("error: "))
    words = max(len(word) for line in shown for word in line.split())
    assert max(map(len, shown[at:])) <= max(60, words + 2)
    assert " ".join(" ".join(shown[at:]).split()) == error
