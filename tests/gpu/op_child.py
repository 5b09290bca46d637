"""The operators on a GPU: every check that is named, in one process; see `op_checks.main`."""

import ctypes
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fa_tune import families
from fa_tune.build.native.core import KernelImage
from fa_tune.build.native.library import stable_library, torch_library
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.op import attention, explain, flash_attn_func, flash_attn_varlen_func, prepare
from fa_tune.op.operands import Lengths
from fa_tune.op.state import operators
from fa_tune.op.traits import Traits
from fa_tune.operations.base import Tensors
from fa_tune.operations.forward import torch_side
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.torch_side import outputs_of
from tests.csrc.host_cost import host_cost as cost_of_core
from tests.gpu.items import by_cupy
from tests.gpu.op_checks import captured, draw, int32, main, packed_lengths, problem_of, some_traits
from tests.gpu.oracle import same_bits

THREADS, LAUNCHES = 8, 200
LIBRARIES: list[Any] = []  # kept loaded


def by_kernel(workload: Workload, inputs: Tensors) -> list[torch.Tensor]:
    """The same kernel, launched as it is measured."""
    return by_cupy(operators().plans.choice(workload, 0).artifact, workload, inputs)


def by_op(workload: Workload, inputs: Tensors) -> list[torch.Tensor]:
    found = attention(
        *(inputs["q"], inputs["k"], inputs["v"]),
        return_lse=workload.lse,
        **problem_of(workload, inputs),
    )
    torch.cuda.synchronize()
    return list(found) if workload.lse else [found]


def workloads() -> Iterator[Workload]:
    for d_head, dtype in ((128, DType.FP16), (64, DType.BF16), (96, DType.FP16)):
        yield Workload(3, 8, 8, 768, 1536, d_head, dtype)
        yield Workload(2, 6, 3, 413, 1031, d_head, dtype, causal=True, bottom_right=True, lse=True)
        yield Workload(1, 4, 1, 1031, 413, d_head, dtype, causal=True, softmax_scale=0.3)
        shape = (2, 8, 2, 777, 1001, d_head, dtype)
        yield Workload(*shape, causal=True, window_left=100, sink=True, lse=True)
        yield Workload(*shape, window_left=33, window_right=77, bottom_right=True, lse=True)
        yield Workload(*shape, softcap=20.0, alibi=True, lse=True)
    shape = (2, 6, 3, 413, 1031, 192, DType.BF16)
    for lse in (False, True):
        yield Workload(*shape, causal=True, bottom_right=True, lse=lse, d_head_v=128)


def bits_of_the_measured_kernel() -> None:
    assert operators().native is not None, operators().why_python
    for workload in workloads():
        inputs = make_inputs(workload, seed=15)
        assert same_bits(by_op(workload, inputs), by_kernel(workload, inputs)), workload.key
        given = torch.empty_like(by_op(workload, inputs)[0])
        lse = outputs_of(workload, fill=torch.nan).get("lse")
        problem = problem_of(workload, inputs)
        attention(inputs["q"], inputs["k"], inputs["v"], out=given, lse=lse, **problem)
        assert same_bits([given], by_op(workload, inputs)[:1]), workload.key
        del problem["softmax_scale"]
        chosen = explain(inputs["q"], inputs["k"], inputs["v"], **problem)
        assert chosen.variant.key in str(chosen)


def opcheck() -> None:
    q, k = draw(2, 100, 4, 64), draw(2, 70, 2, 64)
    ops = torch.ops.fa_tune
    for masked in (False, True):
        for one in (ops.fwd, ops.fwd_lse):
            torch.library.opcheck(one.default, (q, k, k, masked, masked, None))
    out, lse = torch.empty_like(q), torch.empty(2, 4, 100, device="cuda")
    torch.library.opcheck(ops.fwd_out.default, (q, k, k, out, lse, True, False, 0.3))
    torch.library.opcheck(ops.fwd_out.default, (q, k, k, out, None, False, False, None))
    attention(q, k, k, out=out, lse=lse)
    torch.library.opcheck(ops.bwd.default, (q, q, k, k, out, lse, None, False, False, None))
    v = draw(2, 70, 2, 32)
    torch.library.opcheck(ops.fwd_lse.default, (q, k, v, False, False, None))
    for traits in some_traits(4, 2):
        torch.library.opcheck(ops.scored_fwd.default, (q, k, k, *traits.scored))
        torch.library.opcheck(
            ops.scored_fwd_out.default, (q, k, k, torch.empty_like(q), lse, *traits.scored)
        )
        done = (q, q, k, k, *ops.scored_fwd_lse(q, k, k, *traits.scored))
        torch.library.opcheck(ops.bwd.default, (*done, None, *traits))
    lengths = packed_lengths()
    q, k = draw(200, 4, 64), draw(140, 2, 64)
    for sink in (None, torch.randn(4, device="cuda")):
        traits = Traits(True, sink=sink)
        torch.library.opcheck(ops.packed_fwd.default, (q, k, k, *lengths, *traits.scored))
        out, lse = ops.packed_fwd_lse(q, k, k, *lengths, *traits.scored)
        torch.library.opcheck(
            ops.packed_fwd_out.default,
            (q, k, k, *lengths, torch.empty_like(q), lse, *traits.scored),
        )
        torch.library.opcheck(
            ops.packed_bwd.default, (q, q, k, k, out, lse, None, *lengths, *traits.scored)
        )


def accuracies() -> None:
    """Exact kernels have FlashAttention 2's errors on inputs where fast ones have not."""
    for d_head, dtype, causal in itertools.product((64, 128), DType, (False, True)):
        fast = Workload(1, 8, 8, 1024, 1024, d_head, dtype, causal=causal)
        exact = replace(fast, accuracy="exact")
        inputs = make_inputs(fast, "trained", seed=3)
        judged = torch_side.expected(fast, inputs)["o"].exact
        three = [inputs[name] for name in "qkv"]
        sdpa = torch.nn.functional.scaled_dot_product_attention
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            theirs = sdpa(*(t.transpose(1, 2) for t in three), is_causal=causal).transpose(1, 2)
        base = float((theirs.double() - judged).square().mean().sqrt())
        for workload, most in ((fast, 1.6), (exact, 1.02)):
            out = attention(*three, causal=causal, accuracy=workload.accuracy)
            error = float((out.double() - judged).square().mean().sqrt()) / base
            assert error <= most, (workload.key, error)
            told = explain(*three, causal=causal, accuracy=workload.accuracy)
            assert families.fits(families.config_of(told.variant), workload)


def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return attention(q * 1.5, k, v + 1, causal=True).mul(2)


def compiled_fullgraph() -> None:
    run = torch.compile(block, fullgraph=True)
    q, k = draw(2, 256, 4, 64), draw(2, 256, 2, 64)
    assert same_bits([run(q, k, k)], [block(q, k, k)])
    q.requires_grad_()
    run(q, k, k).sum().backward()
    found, q.grad = q.grad, None
    block(q, k, k).sum().backward()
    assert found is not None
    assert (found - q.grad).abs().max() <= 1e-2 * q.grad.abs().max()


def compiled_dynamic() -> None:
    run = torch.compile(block, fullgraph=True, dynamic=True)
    for n in (256, 300, 301, 411):
        q = draw(2, n, 4, 64)
        assert same_bits([run(q, q, q)], [block(q, q, q)]), n


def compiled_reduce_overhead() -> None:
    run = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    q = draw(2, 256, 4, 64)
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert same_bits([run(q, q, q).clone()], [block(q, q, q)])
        q = draw(2, 256, 4, 64)


def graphs_on_two_streams() -> None:
    q, other = draw(3, 512, 16, 128), draw(3, 512, 16, 128)
    prepare(like=(q, q, q))
    expected = attention(other, other, other)
    graphs = [
        (*captured(lambda: attention(attention(q, q, q) * 0 + q, q, q)), torch.cuda.Stream())
        for _ in range(2)
    ]
    q.copy_(other)
    torch.cuda.synchronize()
    for _ in range(100):
        for graph, _, side in graphs:
            with torch.cuda.stream(side):
                graph.replay()
        plain = attention(q, q, q)
    torch.cuda.synchronize()
    assert same_bits([plain, *(out for _, out, _ in graphs)], [expected] * 3)


def miss_in_capture() -> None:
    q = draw(1, 100, 2, 192)  # a head dimension that no other check has
    refused = ""
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        try:
            attention(q, q, q)
        except InvalidConfig as error:
            refused = str(error)
    assert "prepare()" in refused, refused
    prepare(like=(q, q, q))
    graph, out = captured(lambda: attention(q, q, q))
    graph.replay()
    assert same_bits([out], [attention(q, q, q)])


def threads() -> None:
    wrong = []

    def drawn(seed: int) -> torch.Tensor:
        generator = torch.Generator("cuda").manual_seed(seed)
        shape = (2, 700, 8, 128)
        return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float16)

    def work(seed: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            q = drawn(seed)
            first = attention(q, q, q)
            for _ in range(LAUNCHES):
                if not same_bits([attention(q, q, q)], [first]):
                    wrong.append(seed)
            if not same_bits([first], [expected[seed]]):
                wrong.append(seed)

    expected = [attention(q, q, q) for q in map(drawn, range(THREADS))]
    torch.cuda.synchronize()
    running = [threading.Thread(target=work, args=(seed,)) for seed in range(THREADS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not wrong, wrong


def two_gpus() -> str:
    if torch.cuda.device_count() < 2:
        return "one GPU"
    q = draw(2, 300, 4, 128)
    there = q.to("cuda:1")
    for _ in range(10):
        one, other = attention(q, q, q), attention(there, there, there)
    assert torch.cuda.current_device() == 0
    assert same_bits([one], [other.to("cuda:0")])
    return "right"


def new_lengths() -> None:
    """No new choice and no compilation for a length of a known bucket: 10 µs and a launch."""
    native = operators().native
    assert native is not None
    q = draw(1, 1, 8, 128)
    keys = [draw(1, n, 8, 128) for n in range(1030, 1290)]
    for k in (keys[0], draw(1, 1152, 8, 128)):
        attention(q, k, k)
    before = native.choices()
    for k in keys:
        attention(q, k, k)
    assert native.choices() == before


def python_op() -> None:
    """What stands in where C++ finds no place in torch: the same bits."""
    assert operators().native is None
    for workload in list(workloads())[:6]:
        inputs = make_inputs(workload, seed=15)
        assert same_bits(by_op(workload, inputs), by_kernel(workload, inputs)), workload.key
    graphs_on_two_streams()


def first_calls() -> str:
    """Seconds in new processes, as JSON: without a cache, where only C++ is compiled already, and
    with what that left there."""
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "XDG_CACHE_HOME": cache}
        torch_library(Path(torch.__file__).parent, Path(cache) / "fa-tune")
        command = [sys.executable, "-m", "tests.gpu.first_call_child"]
        found = {}
        for name in ("cold", "from_cache", "from_cache_again"):
            done = subprocess.run(command, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            found[name] = json.loads(done.stdout)
    return json.dumps(found)


def nothing() -> Callable[..., None]:
    """An operator of fwd_out's schema that does nothing."""
    source = Path(__file__).with_name("nothing.cpp")
    sources = {source.name: source.read_text(encoding="utf-8")}
    with tempfile.TemporaryDirectory() as cache:
        path = stable_library("nothing", sources, Path(torch.__file__).parent, Path(cache))
        LIBRARIES.append(ctypes.CDLL(str(path)))
    schemas = torch.library.Library("fa_tune_test", "DEF")
    LIBRARIES.append(schemas)
    schemas.define(
        "nothing(Tensor q, Tensor k, Tensor v, bool causal, bool bottom_right, float? scale, "
        "Tensor(a!) out, Tensor(b!)? lse) -> ()"
    )
    LIBRARIES[0].register_nothing()
    found: Callable[..., None] = torch.ops.fa_tune_test.nothing.default
    return found


def host_cost() -> str:
    """Nanoseconds per call, as JSON: medians over rounds that alternate, with an idle GPU before
    each and without the queue ever being full.  `bare_ns` is cuLaunchKernel's alone."""
    workload = Workload(1, 1, 1, 128, 128, 128, DType.FP16)
    artifact = operators().plans.choice(workload, 0).artifact
    q, out = draw(1, 128, 1, 128), draw(1, 128, 1, 128)
    lse = torch.empty(1, 1, 128, device="cuda")
    ops, turned = torch.ops.fa_tune, q.transpose(1, 2)
    fwd_out = ops.fwd_out.default
    sdpa = torch.nn.functional.scaled_dot_product_attention
    op_of_torch = nothing()
    sink, row, out_row = torch.zeros(1, device="cuda"), q[0], out[0]
    masked, scored_out = Traits(True, window_left=50, sink=sink), ops.scored_fwd_out.default
    ends = int32(0, 60, 128)
    lengths, packed_out = Lengths(ends, ends, 68, 68), ops.packed_fwd_out.default
    calls: dict[str, Callable[[], Any]] = {
        "fwd_out_ns": lambda: fwd_out(q, q, q, out, None, False, False, None),
        "fwd_out_lse_ns": lambda: fwd_out(q, q, q, out, lse, False, False, None),
        "attention_ns": lambda: attention(q, q, q),
        "attention_lse_ns": lambda: attention(q, q, q, return_lse=True),
        "empty_ns": lambda: torch.empty_like(q),
        "empty_with_lse_ns": lambda: (torch.empty_like(q), torch.empty_like(lse)),
        "operator_that_does_nothing_ns": lambda: op_of_torch(
            q, q, q, False, False, None, out, None
        ),
        "fwd_out_masks_ns": lambda: scored_out(q, q, q, out, None, *masked.scored),
        "attention_masks_ns": lambda: attention(q, q, q, causal=True, window=(50, None), sink=sink),
        "packed_fwd_out_ns": lambda: packed_out(row, row, row, *lengths, out_row, None),
        "flash_attn_varlen_func_ns": lambda: flash_attn_varlen_func(row, row, row, *lengths),
        "flash_attn_func_ns": lambda: flash_attn_func(q, q, q, causal=True),
        "sdpa_ns": lambda: sdpa(turned, turned, turned),
        "nothing_ns": lambda: None,
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_number in range(35):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter_ns()
            for _ in range(200):
                call()
            if round_number >= 5:
                times[name].append((time.perf_counter_ns() - start) / 200)
    found = {name: round(statistics.median(some), 1) for name, some in times.items()}
    bare = cost_of_core(KernelImage.of(artifact))
    return json.dumps({**found, "core": bare})


if __name__ == "__main__":
    main(globals())
