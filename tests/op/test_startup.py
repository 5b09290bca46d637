"""The module that Python runs first in the processes of a program that is proven."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fa_tune.tune.capture import STARTUP
from tests.project_files import ROOT


def _said(program: str, folder: Path, **environment: str) -> str:
    given = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(STARTUP), str(ROOT)]),
        "FA_TUNE_PROVE": str(folder),
        "FA_TUNE_PROVE_CALLS": "tests.tune.provable:enable",
        **environment,
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=given, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return done.stdout.strip()


def test_torch_is_imported_as_ever_and_begins_when_cuda_does(tmp_path: Path) -> None:
    """In a program's children as well."""
    child = (
        "import torch\nassert float(torch.ones(2).sum()) == 2\n"
        "print([c[0].__name__ for c in torch.cuda._queued_calls].count('_begin'))"
    )
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {child!r}])"
    assert _said(program, tmp_path) == "1"
    assert not [*tmp_path.iterdir()], "CUDA has not begun"


@pytest.mark.parametrize("variable", ["FA_TUNE_PROVE", "PYTHONPATH"])
def test_other_programs_are_left_alone(tmp_path: Path, variable: str) -> None:
    program = "import sys\nprint('torch' in sys.modules, 'fa_tune' in sys.modules)"
    where = str(STARTUP) if variable == "PYTHONPATH" else str(tmp_path)
    assert _said(program, tmp_path, **{variable: where}).startswith("False")
