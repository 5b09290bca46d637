"""The C++ core launches what Python launches: the same bits, from many threads, in graphs, on two
GPUs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fa_tune.core.options import MachineOptions
from tests.project_files import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]


def run(check: str, machine: MachineOptions) -> str:
    command = [sys.executable, "-m", "tests.gpu.core_child", check, str(machine.cache_dir)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.mark.parametrize("check", ["bits", "threads", "graphs", "table"])
def test_results_are_those_of_python_to_the_bit(check: str, machine: MachineOptions) -> None:
    """Single launches; 10,000 by 8 threads on 8 streams; captured ones; by a table."""
    assert run(check, machine) == "right"


def test_two_gpus_in_one_process(machine: MachineOptions) -> None:
    found = run("two_gpus", machine)
    if found == "one GPU":
        pytest.skip("needs two GPUs")
    assert found == "right"


def test_the_cost_of_a_launch_is_measured(machine: MachineOptions) -> None:
    """`pytest -s` shows it: JSON for each family."""
    found = run("cost", machine)
    print(found)
    assert "core_ns" in found
