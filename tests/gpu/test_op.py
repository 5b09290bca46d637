"""The operators on a GPU: the bits of the measured kernel; compiled, captured, in threads; their
gradients; what a call costs the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.project_files import ROOT

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

CHECKS = (
    "first_calls",
    "bits_of_the_measured_kernel",
    "opcheck",
    "miss_in_capture",
    "graphs_on_two_streams",
    "threads",
    "new_lengths",
    "sdpa_kernels",
    "sdpa_values",
    "flash_attn_functions",
    "transformers_models",
    "host_cost",
    "gradients",
    "gradients_elsewhere",
    "two_gpus",
    "compiled_fullgraph",
    "compiled_dynamic",
    "compiled_reduce_overhead",
)
MEASURED = ("first_calls", "host_cost")


def run(*checks: str, **variables: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.op_child", *checks],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What each check says, of one process."""
    return run(*CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_the_operators_are_right(check: str, said: dict[str, str]) -> None:
    """`pytest -s` shows what is measured."""
    if said[check] == "one GPU":
        pytest.skip("needs two GPUs")
    if check in MEASURED:
        print(said[check])
        assert "Traceback" not in said[check]
    else:
        assert said[check] == "right"


def test_without_a_compiler_python_stands_in() -> None:
    found = run("python_op", CXX="/no/such/compiler")
    assert found == {"python_op": "right"}


def test_the_example_runs() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: no models")
    done = subprocess.run(
        [sys.executable, "examples/llama.py", "--layers", "2", "--seq-len", "256"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    print(done.stdout)
