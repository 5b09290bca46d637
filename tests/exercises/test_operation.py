"""A backward pass with a field of its own, its verification and a kernel that is measured: two
existing files, which list operations and the fields of a workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exercises.overlay import run

pytest.importorskip("torch", reason="torch is not installed: nobody computes anything")

SPEC = '''
"""dQ, dK and dV of attention."""

from fa_tune.core.dtypes import FP32
from fa_tune.operations.base import CheckCase, TensorSpec
from fa_tune.operations.forward.spec import Forward


class Backward(Forward):
    """Its masks and blocks are those of the forward pass."""

    name = "backward"

    def tensors(self, workload):
        w = workload
        q, k, v, o = super().tensors(w)[:4]
        of_results = FP32 if w.wide_sums else w.dtype.element
        given = [q, k, v, TensorSpec("do", o.shape, o.dtype)]
        results = zip(("dq", "dk", "dv"), (q, k, v))
        return (*given, *(TensorSpec(n, t.shape, of_results, output=True) for n, t in results))

    def matmul_flop(self, workload):
        return 5 * super().matmul_flop(workload) // 2

    def verification_cases(self, blocks, d_head, dtype, traits, *, d_head_v=0, thorough=False):
        from fa_tune.core.workload import Workload

        for wide in (False, True):
            yield CheckCase(Workload(2, 2, 2, 37, 53, d_head, dtype, op=self.name, wide_sums=wide))
'''
TORCH_SIDE = '''
"""dQ, dK and dV by torch's autograd."""

import dataclasses

import torch

from fa_tune.operations.base import NORMAL, Figures
from fa_tune.operations.forward import torch_side as forward
from fa_tune.operations.torch_side import Judged


def inputs(workload, text=NORMAL, *, seed, **how):
    found = dict(forward.inputs(workload, text, seed=seed, **how))
    generator = torch.Generator().manual_seed(seed)
    shape = (*found["q"].shape[:3], workload.d_v)
    found["do"] = torch.randn(shape, generator=generator).to(found["q"])
    return found


def gradients(workload, inputs, dtype):
    leaves = [inputs[name].detach().to(dtype).requires_grad_() for name in "qkv"]
    q, k, v = (leaf.transpose(1, 2) for leaf in leaves)
    out = ((q @ k.transpose(-1, -2)) * workload.scale).softmax(-1) @ v
    grads = torch.autograd.grad(out.transpose(1, 2), leaves, inputs["do"].to(dtype))
    return dict(zip(("dq", "dk", "dv"), grads))


def expected(workload, inputs, *, precise=None):
    exact = gradients(workload, inputs, precise or torch.float64)
    reference = gradients(workload, inputs, inputs["q"].dtype)
    found = {}
    for name, grad in exact.items():
        judged = Judged(grad.double(), torch.zeros((), dtype=torch.float64))
        found[name] = dataclasses.replace(judged, reference=judged.errors(reference[name]))
    return found
'''
SCRIPT = """
import sys
from pathlib import Path

import torch

from fa_tune import families, libraries, operations
from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.libraries import user
from fa_tune.operations import flops
from fa_tune.operations.base import Problem
from fa_tune.operations.torch_side import judge, outputs_of, results_of, torch_side_of
from fa_tune.operations.verification import verdict

Path("mine.py").write_text('''
from fa_tune.operations.backward.torch_side import gradients
import torch

def right(problem, by=1.0):
    def launch():
        found = gradients(problem.workload, problem.inputs, torch.float32)
        return {n: (by * t).to(problem.outputs[n].dtype) for n, t in found.items()}
    return launch

def wrong(problem):
    return right(problem, 1.05)
''')

def verified(place):
    found = []
    like = Workload(2, 2, 2, 37, 53, 32, DType.FP16, op="backward")
    for case in operations.cases_like(like, "plain", thorough=False):
        side = torch_side_of(case.workload)
        given = side.inputs(case.workload, seed=1, device="cpu")
        room = outputs_of(case.workload, fill=float("nan"), device="cpu")
        problem = Problem(case.workload, given, room)
        results = results_of(problem, user.locate(place).bind(problem))
        found.append(judge(case, side.expected(case.workload, given), results))
    return verdict(found)

right = verified("mine.py:right")
assert right.correct, right.reason
assert [Workload.from_key(case.workload).wide_sums for case in right.cases] == [False, True]
assert not verified("mine.py:wrong").correct

w = Workload.from_key(right.cases[1].workload)
assert w.op == "backward" and Workload.from_key(w.key) == w
assert flops.matmul_flop(w) == 5 * flops.matmul_flop(Workload(2, 2, 2, 37, 53, 32, DType.FP16)) // 2
assert flops.input_bytes(w) == 2 * 2 * 2 * 32 * (2 * 37 + 2 * 53)
assert families.runnable(parse_arch("sm_90"), "backward") == ()
try:
    libraries.get("fa2").bind(Problem(w, {}, {}))
except InvalidConfig as error:
    print(error)
"""
FIELD = """    op: str = _field(Effect.KIND, str, default=FORWARD, label="{}", short="{}")
"""


def test_an_operation_with_a_field_of_its_own(tmp_path: Path) -> None:
    new = {
        "fa_tune/operations/backward/__init__.py": '"""The backward pass."""\n',
        "fa_tune/operations/backward/spec.py": SPEC,
        "fa_tune/operations/backward/torch_side.py": TORCH_SIDE,
    }
    edits = {
        "fa_tune/operations/__init__.py": [
            ("in (Forward(),)", "in (Forward(), Backward())"),
            (
                "from fa_tune.operations.base import",
                "from fa_tune.operations.backward.spec import Backward\n"
                "from fa_tune.operations.base import",
            ),
        ],
        "fa_tune/core/workload.py": [
            (
                FIELD,
                f"{FIELD}    wide_sums: bool = _field(\n"
                '        Effect.KIND, bool, default=False, key="wide", label="fp32", short="fp32"\n'
                "    )\n",
            )
        ],
    }
    said = run(tmp_path, SCRIPT, new=new, edits=edits)
    assert said == "fa2 is not called with op, wide_sums yet\n"
