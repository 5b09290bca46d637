"""Kernels and tables of the core as Python's objects, and what they raise."""

from __future__ import annotations

from pathlib import Path

from tests.csrc.conftest import RunWithStub


def test_kernels_and_tables(run_with_stub: RunWithStub, tmp_path: Path) -> None:
    done = run_with_stub("native_child", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == "right"
