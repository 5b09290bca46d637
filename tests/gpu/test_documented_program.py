"""examples/one_kernel.py, which runs a kernel on tensors of one's own; what examples need."""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.conftest import run_python
from tests.project_files import ROOT

PROGRAM = (ROOT / "examples/one_kernel.py").read_text(encoding="utf-8")
JUDGE = """
scores = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()) / 128**0.5
scores.masked_fill_(torch.ones(1000, 1000, device="cuda").triu(1).bool(), -torch.inf)
expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v.double())
assert (out - expected).abs().max() < 4e-3
assert (lse - scores.logsumexp(-1)).abs().max() < 1e-3
print("right")
"""


@pytest.mark.gpu
def test_it_runs_and_its_results_are_right(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM + JUDGE)
    assert run_python(str(script), timeout_s=300).strip() == "right"


def test_its_imports_are_there() -> None:
    """As far as that can be told without a GPU."""
    for node in ast.walk(ast.parse(PROGRAM)):
        if isinstance(node, ast.ImportFrom) and node.module != "fa_tune.gpu.launch":
            module = importlib.import_module(str(node.module))
            for alias in node.names:
                assert hasattr(module, alias.name) or importlib.import_module(
                    f"{node.module}.{alias.name}"
                )


@pytest.mark.parametrize(
    ("example", "package"),
    [
        ("one_kernel", "torch"),
        ("one_kernel", "cupy"),
        ("llama", "torch"),
        ("llama", "transformers"),
    ],
)
def test_a_package_that_is_missing_is_named(tmp_path: Path, example: str, package: str) -> None:
    (tmp_path / f"{package}.py").write_text(f"raise ImportError('no {package}')")
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        [sys.executable, str(ROOT / f"examples/{example}.py")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert package in done.stderr
