"""The operators on a GPU: the bits of the measured kernel; compiled, captured, in threads; their
gradients; what a call costs the host.  Caches whose lengths and pages the GPU alone knows.  The C++
core with kernels that it loads itself, beside those that CuPy loaded."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fa_tune.core.options import MachineOptions
from tests.gpu.conftest import run_python
from tests.gpu.test_grid import SEED_VARIABLE, fresh_seed
from tests.project_files import ROOT

pytestmark = pytest.mark.gpu

# Programs, and the checks that each makes in one process.
CHECKS: dict[str, tuple[str, ...]] = {
    "op_child": (
        *("first_calls", "bits_of_the_measured_kernel", "opcheck", "miss_in_capture"),
        "accuracies",
        *("graphs_on_two_streams", "threads", "new_lengths", "host_cost", "two_gpus"),
        *("compiled_fullgraph", "compiled_dynamic", "compiled_reduce_overhead"),
    ),
    "op_gradients_child": (
        *("gradients", "gradients_of_packed_batches", "gradients_elsewhere", "compiled_traits"),
        *("score_hooks", "packed_score_hooks", "derivatives"),
        *("rows_of_no_sequence", "many_sequences"),
    ),
    "op_dropins_child": (
        *("sdpa_kernels", "sdpa_values", "packed_in_longer_buffers", "no_heads_are_refused"),
        *("transformers_models", "a_cache_in_a_graph", "compiled_caches"),
        *("a_static_cache_in_a_graph", "launches_that_overlap"),
    ),
    "kv_cache_child": (
        *("random_caches", "through_the_drop_in", "any_config", "combined_beside_other_kernels"),
    ),
    "core_child": ("bits", "threads", "graphs", "table", "two_gpus"),
}
SHARDS = 8
MEASURED = ("first_calls", "host_cost")


def run(program: str, *checks: str, **variables: str) -> dict[str, str]:
    said = run_python("-m", f"tests.gpu.{program}", *checks, timeout_s=900, **variables)
    found: dict[str, str] = json.loads(said.splitlines()[-1])
    return found


@cache
def said(program: str, folder: str) -> dict[str, str]:
    """What each check of a program says."""
    return run(program, *CHECKS[program], FA_TUNE_TEST_CACHE=folder)


@pytest.mark.parametrize(
    ("program", "check"), [(p, check) for p, checks in CHECKS.items() for check in checks]
)
def test_operators_caches_and_the_core_are_right(
    program: str, check: str, machine: MachineOptions
) -> None:
    """`pytest -s` shows what is measured."""
    if check == "transformers_models":
        pytest.importorskip("transformers", reason="transformers is not installed: no models")
    found = said(program, str(machine.cache_dir))[check]
    if found == "one GPU":
        pytest.skip("needs two GPUs")
    if check in MEASURED:
        print(found)
        assert "Traceback" not in found
    else:
        assert found == "right"


@pytest.mark.parametrize("program", ["flash_attn_child", "random_gradients_child"])
def test_many_problems_are_right(program: str) -> None:
    """The parameters of FlashAttention's own tests, and random gradients, in processes side by
    side: most of the time goes into compiling."""
    seed = [str(fresh_seed())] * (program == "random_gradients_child")
    running = [
        subprocess.Popen(
            [sys.executable, "-m", f"tests.gpu.{program}", *seed, str(shard), str(SHARDS)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for shard in range(SHARDS)
    ]
    for process in running:
        told, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors[-3000:]
        found = json.loads(told.splitlines()[-1])
        assert found["count"] > 0
        assert found["wrong"] == [], f"{SEED_VARIABLE}={''.join(seed)} draws these again"


def test_where_the_operators_do_not_compile_python_stands_in(tmp_path: Path) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text('#!/bin/sh\ncase "$*" in *torch_cpu*) exit 1;; esac\nexec c++ "$@"\n')
    compiler.chmod(0o755)
    found = run("op_child", "python_op", CXX=str(compiler))
    assert found == {"python_op": "right"}


def test_the_example_runs() -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: no models")
    path = os.pathsep.join((str(ROOT), *sys.path))
    words = ("examples/llama.py", "--layers", "2", "--seq-len", "256")
    print(run_python(*words, timeout_s=300, PYTHONPATH=path))
