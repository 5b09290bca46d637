"""The operators in C++, on CPU tensors with a stub of the driver: what they launch and refuse, and
what they choose when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project_files import ROOT


@pytest.mark.long
@pytest.mark.parametrize("accuracy", ["fast", "exact"])
def test_operators_in_cpp(accuracy: str, stub: Path, native_cache: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.op.native_gradients_child", str(stub), str(native_cache)],
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(stub), "FA_TUNE_ACCURACY": accuracy},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
