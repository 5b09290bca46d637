"""Run in a checkout that has the backward pass: its kernel is verified, and is autograd's."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch

from fa_tune import families, libraries, op
from fa_tune.build.compile import build_ptx
from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.build.native.core import Core
from fa_tune.build.native.library import core_library
from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.op import backward, products, toy_backward
from fa_tune.op.library import LIBRARY, N_DONE
from fa_tune.op.operands import Done
from fa_tune.op.traits import Traits
from fa_tune.operations import flops
from fa_tune.operations.base import Problem
from fa_tune.operations.torch_side import judge, outputs_of, torch_side_of
from fa_tune.operations.verification import verdict
from tests.described import DeviceFacts, describe, unloaded

HOST = """
#include <cmath>
#define __global__
#define __device__
struct { unsigned x, y, z; } blockIdx, gridDim, threadIdx;
#include "toy/entry.cu"

extern "C" void run(const toy::BackwardParams* params, const unsigned* grid, unsigned threads) {
    gridDim = {grid[0], grid[1], grid[2]};
    for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
                for (threadIdx.x = 0; threadIdx.x < threads; ++threadIdx.x) %s(*params);
}
"""

# Autograd takes it in place of torch's kernels.
for operator, function in {
    "fwd_lse": lambda q, k, v, *traits: products.forward(q, k, v, Traits(*traits)),
    "bwd": lambda *given: backward.gradients(Done(*given[:N_DONE]), Traits(*given[N_DONE:-1])),
}.items():
    LIBRARY.impl(operator, function, "CPU", allow_override=True)
exact = [torch.randn(1, n, 2, 4, dtype=torch.float64, requires_grad=True) for n in (5, 7, 7)]
assert torch.autograd.gradcheck(op.attention, exact, fast_mode=True)

# The core describes its launches, and the host runs them.
H200 = parse_arch("sm_90")
FACTS = DeviceFacts(multiprocessors=132, l2_bytes=50 << 20)
config = families.parse("toy(FP16, 16, 32, 32):")
(family,) = families.runnable(H200, "toy")
assert families.of(config) is family
assert family.constraints(config, H200) is None
variant = families.variant(config)
(name,) = family.name_expressions(config, "ragged")
Path("host.cpp").write_text(HOST % name, encoding="utf-8")
build_ptx(variant, "ragged", "compute_80")
command = ["c++", "-std=c++20", "-O1", "-fPIC", "-shared", "-Ikernels", "host.cpp", "-o", "host.so"]
subprocess.run(command, check=True)
host = ctypes.CDLL("./host.so")
plan = family.plan(config, "ragged", family.compile_arch(H200))
kernel = unloaded(Core(core_library(Path("cache"))), variant.key, plan)


def launch(kernel, problem, tensors, device=None):
    described = describe(kernel, problem, tensors, FACTS)
    host.run(described.params, (ctypes.c_uint * 3)(*described.grid), described.block[0])


# The kernel is verified.
found, wrong = [], []
for number, case in enumerate(families.verification_cases(variant, "ragged")):
    w, side = case.workload, torch_side_of(case.workload)
    assert (Workload.from_key(w.key), w.wide_sums) == (w, bool(number))
    assert family.traits(config, w) == "ragged"
    given, room = side.inputs(w, seed=1, device="cpu"), outputs_of(w, fill=torch.nan, device="cpu")
    with pytest.raises(InvalidConfig, match=f"^{w.key} needs dQ"):
        launch(kernel, problem_of(w), tensors_of(given))
    launch(kernel, problem_of(w), tensors_of({**given, **room}))
    expected = side.expected(w, given)
    found.append(judge(case, expected, room))
    wrong.append(judge(case, expected, {**room, "dk": 1.05 * room["dk"]}))
assert len(found) == 2
assert verdict(found).correct, verdict(found).reason
assert not verdict(wrong).correct
like = Workload(2, 2, 2, 37, 53, 16, DType.FP16)
assert flops.matmul_flop(w) == 5 * flops.matmul_flop(like) // 2
assert flops.input_bytes(w) == 2 * 2 * 2 * 16 * (2 * 37 + 2 * 53)
with pytest.raises(InvalidConfig, match="toy"):
    libraries.get("fa2").bind(Problem(w, {}, {}))

# A backward pass of attention launches it.
launched = []
toy_backward.kernel_of = lambda workload, device: launched.append(workload) or kernel
toy_backward.launch = launch
leaves = [given[name].requires_grad_() for name in "qkv"]
out = op.attention(*leaves, softmax_scale=0.3)
grads = dict(zip(("dq", "dk", "dv"), torch.autograd.grad(out, leaves, given["do"]), strict=True))
(w,) = launched
assert (w.op, w.softmax_scale) == ("toy", 0.3)
assert judge(case, torch_side_of(w).expected(w, given), grads).ok
