"""Tests marked `gpu` are skipped without a device, with a line that says how many."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_DEVICE = '{"driver_cuda": null, "compute_capabilities": []}'
OLD_DEVICE = '{"driver_cuda": [13, 0], "compute_capabilities": [[7, 5]]}'
DEVICE = '{"driver_cuda": [13, 0], "compute_capabilities": [[9, 0]]}'

TESTS = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(3))
def test_device(n):
    pass

def test_plain():
    pass
"""


def _pytest(tmp_path: Path, probe: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this project's conftest on TESTS, with a probe that gives a canned answer."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "tools" / "gpu_probe.py").write_text(f"print({probe!r})")
    (tmp_path / "tests" / "test_it.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("probe", "workers"),
    [(OLD_DEVICE, []), (NO_DEVICE, ["-n", "2", "--dist", "loadgroup"])],
)
def test_skipped_loudly_without_a_device(tmp_path: Path, probe: str, workers: list[str]) -> None:
    done = _pytest(tmp_path, probe, *workers)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 GPU tests skipped: no CUDA device" in done.stdout
    assert "1 passed, 3 skipped" in done.stdout.splitlines()[-1]


def test_run_with_a_device(tmp_path: Path) -> None:
    done = _pytest(tmp_path, DEVICE)
    assert "4 passed" in done.stdout
    assert "GPU tests skipped" not in done.stdout


def test_required_device_is_missed_before_any_test(tmp_path: Path) -> None:
    done = _pytest(tmp_path, NO_DEVICE, "--require-gpu")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no CUDA device" in done.stderr
    assert "passed" not in done.stdout
