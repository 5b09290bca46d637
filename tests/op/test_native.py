"""The operators in C++, on CPU tensors with a stub of the driver: what they launch and refuse, and
what they choose when."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.project_files import ROOT


@pytest.mark.parametrize(
    "checks", ["views packed results refused", "buckets", "partition", "threads", "fork"]
)
def test_operators_in_cpp(checks: str, stub: Path, native_cache: Path) -> None:
    """Those that count choices each in a process of its own."""
    run_child("native_child", stub, native_cache, checks)


def test_exact_kernels_in_cpp(
    stub: Path, native_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FA_TUNE_ACCURACY", "exact")
    run_child("native_child", stub, native_cache, "accuracies")


def test_gradients_in_cpp(stub: Path, native_cache: Path) -> None:
    run_child("native_gradients_child", stub, native_cache)


def run_child(name: str, stub: Path, native_cache: Path, checks: str = "") -> None:
    """Run a program of this folder, which is to find nothing wrong."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            f"tests.op.{name}",
            str(stub),
            str(native_cache),
            *checks.split(),
        ],
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(stub)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.strip() == "True"
