"""A job's kernel from cubin to launch, with a CuPy and a driver that only write down."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.csrc.conftest import RunWithStub

pytest.importorskip("torch", reason="torch is not installed: no tensors to launch on")


def test_kernels_that_cupy_loads_are_launched_by_the_core(
    run_with_stub: RunWithStub, tmp_path: Path
) -> None:
    done = run_with_stub("adopted_child", str(tmp_path))
    assert (done.stdout, done.stderr) == ("right\n", "")
