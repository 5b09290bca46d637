"""What a program to be proven imports, in place of torch and of our operator."""

from __future__ import annotations

import os
import sys
from pathlib import Path

GAINS = "TEST_GAINS"


def enable() -> None:
    """In place of `enable_sdpa`."""
    os.environ[GAINS] = "1"


def refuse() -> None:
    raise RuntimeError("no flash attention here")


TORCH = """
class cuda:
    @staticmethod
    def _lazy_call(function):
        function()
"""


def write(folder: Path, body: str, *, uses_torch: bool = True) -> tuple[str, ...]:
    """The command of a program with this body, where `gains` is whether it runs with ours and `n`
    how often it has run before."""
    (folder / "torch.py").write_text(TORCH)
    head = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {str(folder)!r})
{"import torch" if uses_torch else ""}
counter = Path({str(folder)!r}, "runs")
n = len(counter.read_text()) if counter.exists() else 0
counter.write_text("x" * (n + 1))
gains = {GAINS!r} in os.environ
"""
    path = folder / "program.py"
    path.write_text(head + body)
    return sys.executable, str(path)


def runs(folder: Path) -> int:
    """How often the program was begun."""
    return len((folder / "runs").read_text())
