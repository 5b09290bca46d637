"""What set-up decides to install, share and leave alone."""

from __future__ import annotations

import json

import pytest

import installation
import pip_runner
from checkout import SetupError
from requirement_check import Installed

TORCH_CU130 = {"torch": Installed("2.11.0+cu130")}
TORCH_CU12 = {"torch": Installed("2.10.0", ("nvidia-cuda-nvrtc-cu12==12.8.93; linux",))}
TORCH_CPU = {"torch": Installed("2.13.0+cpu")}
CUPY_12 = {"cupy-cuda12x": Installed("14.2.0")}


@pytest.mark.parametrize(
    ("driver", "installed", "expected"),
    [
        (None, {}, None),
        ((11, 8), {}, None),
        ((12, 4), {}, 12),
        ((13, 0), {}, 13),
        ((14, 1), {}, 13),
        ((13, 0), TORCH_CU12, 12),  # what is there decides …
        ((13, 0), CUPY_12, 12),
        ((12, 4), TORCH_CU130, 12),  # … unless the driver cannot run it
        ((13, 0), TORCH_CU130, 13),
        ((13, 0), TORCH_CPU, 13),
        (None, TORCH_CU130, None),
    ],
)
def test_choose_cuda(
    driver: tuple[int, int] | None, installed: dict[str, Installed], expected: int | None
) -> None:
    assert installation.choose_cuda(driver, installed) == expected


@pytest.mark.parametrize(("forced", "expected"), [("none", None), ("12", 12), ("13", 13)])
def test_forced_cuda_decides_alone(forced: str, expected: int | None) -> None:
    assert installation.choose_cuda((13, 0), TORCH_CU12, forced) == expected


def test_forced_cuda_must_be_known() -> None:
    with pytest.raises(SetupError, match="FA_TUNE_SETUP_CUDA=11 is none of"):
        installation.choose_cuda(None, {}, "11")


@pytest.mark.parametrize(
    ("visible", "host", "expected"),
    [
        ({}, TORCH_CU130, True),  # a container with torch
        ({}, CUPY_12, True),
        (TORCH_CU130, TORCH_CU130, False),  # by PYTHONPATH, say: seen already
        ({}, {"click": Installed("8.2"), "rich": Installed("15")}, True),  # it has everything
        ({}, {"click": Installed("8.2")}, False),
        ({}, {}, False),
        ({"click": Installed("8.2"), "rich": Installed("15")}, {}, False),
    ],
)
def test_shares_host(
    visible: dict[str, Installed], host: dict[str, Installed], expected: bool
) -> None:
    assert installation.shares_host(["click>=8.1", "rich"], visible, host) is expected


def test_heavy_packages_are_held() -> None:
    visible = {**TORCH_CU130, "numpy": Installed("2.5.2"), "click": Installed("8.2")}
    held = installation.held_versions(["pydantic>=2.7"], visible)
    assert held == ["torch==2.11.0+cu130", "numpy==2.5.2"]
    assert installation.held_versions(["torch>=2.11"], visible) == ["numpy==2.5.2"]


def _report(*names: str) -> str:
    return json.dumps({"install": [{"metadata": {"name": name}} for name in names]})


def test_cpu_build_is_told_from_cuda_build() -> None:
    assert pip_runner.cuda_packages(_report("torch", "sympy", "filelock")) == []
    heavy = pip_runner.cuda_packages(_report("torch", "triton", "nvidia-cublas", "cuda-toolkit"))
    assert heavy == ["cuda-toolkit", "nvidia-cublas", "triton"]


@pytest.mark.parametrize(
    ("log", "environment", "expected"),
    [
        (
            "WARNING: Retrying … NewConnectionError('…: Failed to establish a new connection')\n"
            "ERROR: Could not find a version that satisfies the requirement rich>=13.7",
            {},
            "cannot install rich>=13.7, pandas>=2.2: no package index is reachable",
        ),
        (
            "ERROR: No matching distribution found for rich>=13.7",
            {"PIP_NO_INDEX": "1"},
            "no package index is reachable",
        ),
        (
            "ERROR: Could not install packages due to an OSError: [Errno 28] No space left",
            {},
            "cannot install rich>=13.7, pandas>=2.2: Could not install packages due to an OSError",
        ),
        ("", {}, "cannot install rich>=13.7, pandas>=2.2: pip failed (all of it: pip.log)"),
    ],
)
def test_failures_are_one_line(
    log: str, environment: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    line = pip_runner.explain(log, ["rich>=13.7", "pandas>=2.2"], "pip.log")
    assert expected in line
    assert "\n" not in line
