"""A user's function and a user's `.cu` beside our kernels: their own files alone."""

import json
import os
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core import devices
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.jobs import TimeJob, VerifyJob
from fa_tune.core.workload import DType
from fa_tune.store.registry import file as registry_file
from fa_tune.tune import build, session
from tests.commands.console import Console, words
from tests.kernels.emulated.emulation import compiler
from tests.tune import fakes

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

FUNCTION = """
import sys

assert "pytest" not in sys.modules, "this is no child process"

def right(problem, by=1.0):
    q, k, v = (problem.inputs[name].transpose(1, 2).float() for name in "qkv")

    def launch():
        weights = (q @ k.transpose(-1, -2) * problem.workload.scale).softmax(-1)
        return {"o": (weights @ v * by).transpose(1, 2).to(problem.outputs["o"].dtype)}

    return launch

def wrong(problem):
    return right(problem, 1.1)
"""
CUDA = """
#include <cuda_fp16.h>

extern "C" __global__ void rows(const __half* q, const __half* k, const __half* v, __half* o,
                                int seq, int heads, int d, float scale) {
    const int row = blockIdx.x * blockDim.x + threadIdx.x, head = blockIdx.y;
    const auto at = [&](int i) { return (i * heads + head) * d; };
    float sum[64] = {}, total = 0;
    for (int key = 0; key < seq; ++key) {
        float score = 0;
        for (int i = 0; i < d; ++i) score += float(q[at(row) + i]) * float(k[at(key) + i]);
        const float weight = expf(scale * score);
        total += weight;
        for (int i = 0; i < d; ++i) sum[i] += weight * float(v[at(key) + i]);
    }
    for (int i = 0; i < d; ++i) o[at(row) + i] = __float2half(sum[i] / total);
}
"""
LAUNCHER = """
import numpy as np

def launch(problem, function):
    w, given = problem.workload, problem.inputs
    tensors = [given["q"], given["k"], given["v"], problem.outputs["o"]]
    sizes = [np.int32(n) for n in (w.seq_len_q, w.heads, w.d_head)]
    addresses = [tensor.data_ptr() for tensor in tensors]
    arguments = (*addresses, *sizes, np.float32(w.scale))
    function((w.seq_len_q // 32, w.heads, 1), (32, 1, 1), arguments)
"""
PLACES = {"mine.py:right": "ok", "own.cu:rows": "ok", "mine.py:wrong": "wrong_result"}


@pytest.fixture
def console(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Console:
    """In a folder with the user's files, on a pretended H200 whose workers compute on the CPU."""
    cxx = compiler()
    if cxx is None:
        pytest.skip("no C++ compiler that knows C++20 and fp16")
    path = (str(Path(__file__).parent / "on_the_cpu"), os.environ.get("PYTHONPATH"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, path)))
    monkeypatch.setenv("CXX", cxx)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name, text in (("mine.py", FUNCTION), ("own.cu", CUDA), ("own.py", LAUNCHER)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setattr(devices, "find_device", lambda index=0: fakes.H200)
    monkeypatch.setattr(session, "core_library", lambda: None)
    monkeypatch.setattr(session, "WARM_UP_MODULES", ())
    monkeypatch.setattr(build, "build_all", fakes.FakeCompiler())
    monkeypatch.setattr(TimeJob, "handler", "tests.exercises.on_the_cpu.jobs:time_handler")
    monkeypatch.setattr(VerifyJob, "handler", "tests.exercises.on_the_cpu.jobs:verify_handler")
    return Console(capsys)


def test_a_function_and_a_cuda_file_are_found_run_judged_and_reported(
    only_sm80: None, console: Console, tmp_path: Path
) -> None:
    users = [word for place in PLACES for word in ("--with", place)]
    default = str(families.get("sm80").default_config(64, DType.FP16))
    done = console(
        *words("search --seq-lens 64 --d-head 64 --batch 1 --heads 2 --dtype fp16 --runs 3"),
        *words("--profiler events --ref none --no-confirm --registry registry.json --json"),
        *("--cache-dir", "cache", "--kernels", default, *users),
    )
    (found,) = json.loads(done.out)["workloads"]
    rows = {row["kernel"]: row for row in found["rows"]}
    assert {name: row["outcome"] for name, row in rows.items()} == {default: "ok", **PLACES}
    for row in rows.values():
        assert (row["outcome"] == "ok") == (row["median_s"] is not None)
    assert done.status == NoUsableVariant.exit_status
    assert done.lines[-1].startswith("error: --with mine.py:wrong: ")
    (kept,) = registry_file.load(tmp_path / "registry.json").entries
    assert kept.chosen.config == default
