"""GPU time of a kernel launched by the operator and by the launcher that tables are measured with.

`python -m tests.gpu.op_times_child [PAIRS]` prints a line for each workload.  Both launches are of
the same cubin with the same tensors, each in a graph of its own; they take turns, after the L2
cache was overwritten.  The ratio is the median over pairs, with an interval of 95 % for it.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
from collections.abc import Callable

import torch

from fa_tune.core.workload import DType, Workload
from fa_tune.gpu.guard import use_device
from fa_tune.gpu.launch import Kernel
from fa_tune.op import attention
from fa_tune.op.state import operators
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from tests.gpu.items import launch_args, lse_for
from tests.gpu.op_checks import problem_of

PAIRS = 200
FLUSH_BYTES = 256 << 20
BATCH = 16, 16, 16
WORKLOADS = (
    Workload(*BATCH, 4096, 4096, 128, DType.FP16),
    Workload(*BATCH, 4096, 4096, 128, DType.BF16, causal=True, lse=True),
    Workload(*BATCH, 1024, 1024, 64, DType.FP16),
    Workload(*BATCH, 2048, 2048, 256, DType.BF16, causal=True),
    Workload(*BATCH, 1000, 1000, 96, DType.FP16),
    Workload(4, 32, 8, 4096, 4096, 128, DType.BF16, causal=True, window_left=1023, sink=True),
    Workload(4, 32, 32, 2048, 2048, 192, DType.BF16, causal=True, lse=True, d_head_v=128),
)


def captured(call: Callable[[], object]) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            call()
    torch.cuda.current_stream().wait_stream(side)
    return graph


def ratios(workload: Workload, pairs: int) -> tuple[list[float], list[float]]:
    """Microseconds of our own launcher, and the operator's time over them, pair by pair."""
    inputs = make_inputs(workload, seed=15)
    out = inputs["q"].new_empty((*inputs["q"].shape[:3], workload.d_v))
    lse = lse_for(workload)
    artifact = operators().plans.choice(workload, 0).artifact
    kernel = Kernel(artifact.variant, artifact.cubin, *artifact.symbols)
    args, problem = launch_args(inputs, out, lse), problem_of(workload, inputs)

    def own() -> None:
        kernel.launch(workload, args, torch.cuda.current_stream().cuda_stream)

    def operator() -> None:
        attention(inputs["q"], inputs["k"], inputs["v"], out=out, lse=lse, **problem)

    graphs = [captured(call) for call in (own, operator)]
    room = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    dice, times = random.Random(0), []
    for _ in range(pairs + 5):
        pair = [0.0, 0.0]
        for which in dice.sample((0, 1), 2):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            room.zero_()
            begin.record()
            graphs[which].replay()
            end.record()
            end.synchronize()
            pair[which] = begin.elapsed_time(end) * 1e3
        times.append(pair)
    kept = times[5:]
    return [own for own, _ in kept], [operator / own for own, operator in kept]


def interval(values: list[float]) -> tuple[float, float]:
    """Of 95 % for the median, by order statistics."""
    ordered, n = sorted(values), len(values)
    half = 0.98 * n**0.5
    return ordered[max(0, int(n / 2 - half))], ordered[min(n - 1, int(n / 2 + half))]


def main() -> None:
    use_device(0)
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS
    found = {}
    for workload in WORKLOADS:
        own, ratio = ratios(workload, pairs)
        low, high = interval(ratio)
        found[workload.key] = statistics.median(ratio)
        print(
            f"{workload.key:60} {statistics.median(own):9.2f} us  {found[workload.key]:.4f} "
            f"[{low:.4f}, {high:.4f}]",
            flush=True,
        )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
