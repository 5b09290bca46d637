"""An element type of 8 bits for Q, K, V and O: from its row in the table to the C++ core."""

from pathlib import Path

import pytest

from tests.exercises.overlay import SOURCES, changed, run

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

EDITS = {
    "fa_tune/core/dtypes.py": [
        ("ALL = {", 'E5M2 = ElementType("E5M2", 23, 1, "float8_e5m2", 0, 2.0**-2, -14)\nALL = {'),
        ("BF16, E4M3)}", "BF16, E5M2, E4M3)}"),
    ],
    "fa_tune/core/workload.py": [
        ("    BF16 = dtypes.BF16.number\n", "    BF16 = dtypes.BF16.number\n    E5M2 = 23\n")
    ],
}
SCRIPT = """
import subprocess
from pathlib import Path

import torch

from fa_tune import families, operations
from fa_tune.build.native import abi
from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType, Workload
from fa_tune.export.config_headers import write_generated_files
from fa_tune.libraries import user
from fa_tune.operations import flops
from fa_tune.operations.base import Problem
from fa_tune.operations.torch_side import judge, outputs_of, results_of, torch_side_of
from fa_tune.operations.verification import verdict

write_generated_files(Path())
Path("mine.py").write_text('''
def right(problem, by=1.0):
    def launch():
        q, k, v = (problem.inputs[name].transpose(1, 2).float() for name in "qkv")
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * problem.workload.scale
        out = (scores.softmax(-1) @ v * by).transpose(1, 2).to(problem.outputs["o"].dtype)
        return {"o": out}
    return launch

def wrong(problem):
    return right(problem, 1.5)
''')

def verified(place):
    found = []
    for case in operations.cases_like(w, "ragged", thorough=False):
        side = torch_side_of(case.workload)
        given = side.inputs(case.workload, case.inputs, seed=1, device="cpu")
        room = outputs_of(case.workload, fill=float("nan"), device="cpu")
        problem = Problem(case.workload, given, room)
        results = results_of(problem, user.locate(place).bind(problem))
        found.append(judge(case, side.expected(case.workload, given), results))
    return verdict(found)

w = Workload(2, 4, 2, 37, 53, 32, DType.E5M2)
assert w.key == "b2_h4_kv2_q37_k53_d32_e5m2_full" and Workload.from_key(w.key) == w
assert flops.input_bytes(w) == 2 * 32 * (4 * 37 + 2 * 2 * 53)
right = verified("mine.py:right")
assert right.correct, right.reason
assert not verified("mine.py:wrong").correct
for family in families.all_families():
    config = family.default_config(128, DType.E5M2)
    found = family.constraints(config, parse_arch("sm_90"))
    assert found.constraint == "elements_of_16_bits", family.name

# A row of 16 elements is a chunk of 16 bytes: strides of 16 reach every row, those of 8 none.
Path("check.cpp").write_text('''
#include <cstdio>

#include "operands.h"
#include "problem.h"

using namespace fa_tune::core;

int main() {
    fa_tune_problem problem{};
    problem.operation = FA_TUNE_OPERATION_FORWARD;
    problem.dtype = FA_TUNE_DTYPE_E5M2;
    problem.batch = problem.heads = problem.kv_heads = 2;
    problem.seq_len_q = problem.seq_len_kv = problem.d_head = 16;
    for (const long long stride : {16, 8}) {
        fa_tune_tensors tensors{};
        for (int role = 0; role < 4; ++role) {
            tensors.of[role] = {&tensors, stride * 64, stride * 2, stride};
            tensors.of[role].address = reinterpret_cast<void*>(4096);
        }
        check_problem(problem);
        bool taken = true;
        try {
            check_tensors(problem, tensors);
        } catch (const Failure&) {
            taken = false;
        }
        std::printf("1 %d ", taken);
    }
    std::puts(key_of(problem).c_str());
}
''')
sources = ["check.cpp", *(f"csrc/core/{name}.cpp" for name in ("operands", "problem"))]
command = ["c++", "-std=c++17", "-O0", "-Icsrc/core", "-Ikernels", *sources, "-o", "check"]
subprocess.run(command, check=True)
print(subprocess.run(["./check"], capture_output=True, text=True, check=True).stdout, end="")
"""


def test_an_element_type_of_eight_bits(tmp_path: Path) -> None:
    said = run(tmp_path, SCRIPT, edits=EDITS, copied=SOURCES)
    assert said == "1 1 1 0 b2_h2_kv2_q16_k16_d16_e5m2_full\n"
    files = changed(tmp_path)
    assert set(EDITS) < files
    assert len(files) <= 8, files
