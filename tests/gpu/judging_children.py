"""Workers that judge kernels on problems of some kind: each reports what is wrong, in words.

Items: subject, traits, arch, cubin, symbols, and what the kind says.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fa_tune.core import codec
from fa_tune.core.workload import Workload
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from tests.gpu import any_bits, growing, oracle, poison, wide
from tests.gpu.cases import Case
from tests.gpu.items import Handler, enqueue, handler, load, results
from tests.gpu.offsets import check_lse, check_strides
from tests.libraries.calls import run
from tests.tensors import qkv

STREAM_ROUNDS = 50
GATE_CYCLES = 4_000_000  # about 2 ms


def call_of(kernel: CompiledKernel) -> oracle.KernelCall:
    """The kernel as a function of tensors."""

    def call(w: Workload, inputs: Tensors, out: torch.Tensor, lse: torch.Tensor | None) -> None:
        outputs = {"o": out} if lse is None else {"o": out, "lse": lse}
        enqueue(kernel, w, {**inputs, **outputs})
        torch.cuda.synchronize()

    return call


def problems(check: Callable[[Any, Workload, oracle.KernelCall], list[str]]) -> Handler:
    """A worker for items with `problems`: keys of workloads, and what `check` knows each by."""

    def check_all(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
        return [
            f"{item['subject']} {text}"
            for key, name in item["problems"]
            for text in check(name, Workload.from_key(key), call_of(kernel))
        ]

    return handler(check_all)


def check_cases(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """What is wrong on each of the item's `cases`; see oracle.py."""
    cases = (codec.load(Case, case) for case in item["cases"])
    return [text for case in cases for text in oracle.check(case, call_of(kernel))]


def check_offsets(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """What is wrong with the item's `workload`, spread in its `dimension`; see offsets.py."""
    w, dimension = Workload.from_key(item["workload"]), item["dimension"]
    try:
        if dimension == "lse":
            return check_lse(call_of(kernel), w)
        return check_strides(call_of(kernel), w, dimension=dimension)
    finally:
        torch.cuda.empty_cache()


def flash_attention(w: Workload, inputs: Tensors) -> torch.Tensor:
    """torch's FlashAttention 2, [batch, seq, heads, d_head].

    With little to do it splits the keys, in tiles of another size; so that it does not, the
    batch is there many times over.
    """
    multiprocessors = torch.cuda.get_device_properties().multi_processor_count
    times = -(-2 * multiprocessors // (w.batch * w.heads))
    many = qkv(*(t.repeat(times, 1, 1, 1) for t in (inputs["q"], inputs["k"], inputs["v"])))
    return run("fa2", many, replace(w, batch=times * w.batch))[: w.batch]


def check_poison(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """What is wrong with the item's `problem`; see poison.py.

    Beside FlashAttention 2, of torch, which knows no soft cap, as far as its tiles, which decide
    what hidden keys reach, are no smaller than the kernel's: 128×64 up to d_head 192, and 64×64
    above."""
    one = codec.load(poison.Problem, item["problem"])
    b_r, b_c = one.blocks
    rows = 128 if one.workload.d_head <= 192 else 64
    known = one.workload.softcap is None and b_r <= rows and b_c <= 64
    return poison.check(one, call_of(kernel), flash_attention if known else None, "cuda")


def repeat_all(kernel: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """Whether `repeats` launches of each of the item's `cases`, back to back, each into tensors of
    its own filled with NaN, gave the same bits and no NaN."""
    wrong = []
    for case in (codec.load(Case, case) for case in item["cases"]):
        w = case.workload
        inputs = oracle.inputs_for(w, case.layout, case.seed, "cuda", case.growth)
        first, *others = [results(kernel, w, inputs) for _ in range(int(item["repeats"]))]
        torch.cuda.synchronize()
        same = (oracle.same_bits(first, other) for other in others)
        wrong += [] if all(same) else [f"{case.name}: launches differ"]
        wrong += [f"{case.name}: NaN" for tensor in first if tensor.isnan().any()]
    return wrong


def check_streams(_: CompiledKernel, item: Mapping[str, Any]) -> list[str]:
    """Launches that overlap on several streams, each with a kernel and so with scratch of its own,
    must give what each gives alone, to the bit."""
    w = Workload.from_key(item["workload"])
    kernels = [load(item) for _ in range(wide.STREAMS)]
    streams = [torch.cuda.Stream() for _ in kernels]
    given = [make_inputs(w, seed=i) for i in range(wide.STREAMS)]
    outs = [torch.full_like(one["q"], math.nan) for one in given]
    calls = [{**one, "o": out} for one, out in zip(given, outs, strict=True)]
    alone = []
    for kernel, args, out in zip(kernels, calls, outs, strict=True):
        enqueue(kernel, w, args)
        torch.cuda.synchronize()
        alone.append(out.clone())
    wrong = []
    for round_ in range(STREAM_ROUNDS):
        for out in outs:
            out.fill_(math.nan)
        torch.cuda.synchronize()
        # Launching takes longer than some kernels run: none begins before all are there.
        gate = torch.cuda.Event()
        torch.cuda._sleep(GATE_CYCLES)
        gate.record()
        for kernel, args, stream in zip(kernels, calls, streams, strict=True):
            stream.wait_event(gate)
            with torch.cuda.stream(stream):
                enqueue(kernel, w, args)
        torch.cuda.synchronize()
        wrong += [
            f"{item['subject']} {w.key}: round {round_}, stream {i} differs"
            for i, (out, own) in enumerate(zip(outs, alone, strict=True))
            if not oracle.equal_bits(out, own)
        ]
    return wrong[:4] + wide.why("alone", w, given[0], alone[0], None)


any_bits_problems = problems(any_bits.check)
growing_problems = problems(growing.check)
wide_problems = problems(wide.check)
cases = handler(check_cases)
offsets = handler(check_offsets)
poisoned = handler(check_poison)
repeats = handler(repeat_all)
streams = handler(check_streams)
