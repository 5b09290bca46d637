"""Users' kernels beside ours, from the command line: right ones, and ones that fail."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fa_tune import families
from fa_tune.core.arch import parse_arch
from fa_tune.core.options import MachineOptions
from fa_tune.core.workload import DType
from tests.gpu.conftest import run_program

pytestmark = pytest.mark.gpu

EXAMPLES = ("examples/torch_attention.py:attention", "examples/row_attention.cu:rows")
SMALL = ["--dtype", "fp16", "--seq-lens", "512", "--batch", "1", "--heads", "4", "--d-head", "64"]

# How one fails -> its launch, and words of the line that says so.
FAULTS = {
    "raises": ("raise RuntimeError('mine')", "RuntimeError: mine"),
    "is wrong": ("return {'o': problem.inputs['q'].clone()}", "wrong result"),
    "writes nothing": ("return None", "wrong result"),
    "has another shape": ("return {'o': problem.inputs['q'][0]}", "not torch.float16 (1, 512"),
    "ends the process": ("os._exit(3)", "crashed"),
    "poisons the context": (
        "torch.zeros(4, device='cuda')[torch.full((4,), 9**9, device='cuda')]; "
        "torch.cuda.synchronize()",
        "crashed",
    ),
    "hangs": ("torch.cuda._sleep(1 << 55)", "timed out"),
}


@pytest.fixture
def ours(arch: str, machine: MachineOptions) -> list[str]:
    default, *_ = families.defaults(64, DType.FP16, parse_arch(arch))
    return [families.variant(default).config, "--cache-dir", str(machine.cache_dir)]


def with_all(places: tuple[str, ...]) -> list[str]:
    return [word for place in places for word in ("--with", place)]


def timings(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {t["kernel"]: t for t in json.loads(done.stdout)["timings"]}


def test_examples_are_timed_and_verified(ours: list[str]) -> None:
    done = run_program(
        "bench", "--kernels", *ours, *SMALL, *with_all(EXAMPLES), "--ref", "none", "--json"
    )
    assert done.returncode == 0, done.stderr
    found = timings(done)
    assert set(EXAMPLES) < set(found)
    assert all(t["outcome"] == "ok" for t in found.values())
    config, *cache = ours
    masks = ["--mask", "full,causal", "--d-head", "64", "--json"]
    done = run_program("verify", "--kernels", config, *masks, *with_all(EXAMPLES), *cache)
    assert done.returncode == 0, done.stderr
    verdicts = {v["variant"]: v["correct"] for v in json.loads(done.stdout)["verdicts"]}
    assert all(any(place in name for name in verdicts) for place in EXAMPLES)
    assert all(verdicts.values())


@pytest.mark.parametrize("profiler", ["ncu", "events"])
def test_examples_are_profiled(profiler: str, ours: list[str]) -> None:
    config, *cache = ours
    words = [*SMALL[2:-2], "--profiler", profiler, *with_all(EXAMPLES), "--json"]
    done = run_program("profile", config, *words, *cache)
    if profiler == "ncu" and done.returncode == 3:
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    taken = {m["subject"]: m for m in json.loads(done.stdout)["measurements"]}
    assert all(taken[f"user:{place}"]["samples_s"] for place in EXAMPLES)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_one_costs_its_own_row(fault: str, ours: list[str], tmp_path: Path) -> None:
    launch, said = FAULTS[fault]
    file = tmp_path / "mine.py"
    file.write_text(
        "import os\nimport torch\n\ndef attention(problem):\n"
        f"    def launch():\n        {launch}\n    return launch\n"
    )
    mine = ["--with", f"{file}:attention", "--ref", "fa2", "--json"]
    done = run_program("bench", "--kernels", *ours, *SMALL, *mine)
    assert done.returncode == 4
    last = done.stderr.splitlines()[-1]
    assert f"{file}:attention" in last
    assert said in last
    outcomes = [t["outcome"] for t in timings(done).values()]
    assert outcomes.count("ok") == 2, "ours and FlashAttention 2"


def test_a_cuda_file_that_does_not_compile_says_why(ours: list[str], tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text('extern "C" __global__ void mine() { nothing; }')
    (tmp_path / "mine.py").write_text("def launch(problem, function): pass\n")
    place = f"{tmp_path}/mine.cu:mine"
    done = run_program(
        "bench", "--kernels", *ours, *SMALL, "--with", place, "--ref", "none", "--json"
    )
    assert done.returncode == 4
    assert "nothing" in done.stderr.splitlines()[-1]


def test_a_search_chooses_ours(ours: list[str], tmp_path: Path) -> None:
    config, *cache = ours
    registry = tmp_path / "registry.json"
    words = ["--kernels", config, *SMALL, "--profiler", "events", "--registry", str(registry)]
    done = run_program("search", *words, *with_all(EXAMPLES), "--no-confirm", "--json", *cache)
    assert done.returncode == 0, done.stderr
    assert "examples" not in registry.read_text()
    assert EXAMPLES[0] in done.stdout
