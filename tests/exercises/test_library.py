"""A new library to be measured beside our kernels is one new file."""

from pathlib import Path

import pytest

from tests.exercises.overlay import run

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

LIBRARY = '''
"""Attention of a library that nobody knew."""

import re

from fa_tune.core.workload import FORWARD
from fa_tune.libraries.base import BASIC, TORCH, Library, Package


def forward(problem):
    q, k, v = (problem.inputs[name].transpose(1, 2).float() for name in "qkv")
    scale = problem.workload.scale

    def launch():
        out = ((q @ k.transpose(-1, -2)) * scale).softmax(-1) @ v
        return {"o": out.transpose(1, 2).to(problem.inputs["q"].dtype)}

    return launch


LIBRARY = Library(
    name="mine",
    label="Mine",
    full_name="My library",
    packages=(TORCH, Package("mine", ("my-distribution",), "json", "pip install mine")),
    kernel_names=re.compile("my_kernel"),
    tiles=(re.compile(r"my_kernel_(?P<rows>\\d+)x(?P<keys>\\d+)"),),
    known=BASIC,
    calls={FORWARD: forward},
)
'''
SCRIPT = """
from click.testing import CliRunner

from fa_tune import libraries
from fa_tune.cli import main
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.workload import Workload
from fa_tune.store.table.kernel_names import identify
from fa_tune.operations.base import CheckCase, Problem
from fa_tune.operations.forward.torch_side import expected, inputs
from fa_tune.operations.torch_side import judge, outputs_of, results_of
from fa_tune.store.table.from_attempts import rows_from_attempts

workload = Workload.from_key("b2_h3_kv3_q37_k53_d32_fp16_full")
given = inputs(workload, seed=1, device="cpu")
problem = Problem(workload, given, outputs_of(workload, fill=float("nan"), device="cpu"))
found = results_of(problem, libraries.get("mine").bind(problem))
assert judge(CheckCase(workload), expected(workload, given), found).ok

libraries.require(["mine"])
assert "torch" in libraries.installed("mine")
kernel = identify("void my_kernel_64x32<half>(int)")
assert (kernel.label, kernel.family, kernel.blocks) == ("Mine", "ref", (64, 32))
(row,) = rows_from_attempts([Attempt("ref:mine", workload.key, Outcome.CRASHED, "why")])
assert (row.kernel, row.is_reference) == ("Mine", True)
for name, known in (("mine", True), ("nobody", False)):
    done = CliRunner().invoke(main, ["bench", "--ref", name, "--device", "1023"])
    assert done.exit_code != 0  # there is no such GPU, if any
    assert (repr(name) in done.output) == (not known), done.output
print(libraries.ALL["mine"].label)
"""


def test_a_library_is_one_new_file(tmp_path: Path) -> None:
    new = {"fa_tune/libraries/mine.py": LIBRARY}
    assert run(tmp_path, SCRIPT, new=new) == "Mine\n"
