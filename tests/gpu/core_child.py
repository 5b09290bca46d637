"""The C++ core on a GPU with kernels that it loads itself, beside those that CuPy loaded: every
check that is named, in one process; see `op_checks.main`.  FA_TUNE_TEST_CACHE holds kernels.
"""

import os
import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.native.call import problem_of, tensors_of
from fa_tune.build.native.core import CURRENT_DEVICE, Core, CoreKernel, KernelImage
from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.errors import DriverError
from fa_tune.core.model import Artifact
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.operations.base import Tensors
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.torch_side import outputs_of
from tests.csrc.tables import CoreTable, entry
from tests.gpu.cases import compiled, request
from tests.gpu.items import by_cupy
from tests.gpu.op_checks import main
from tests.gpu.oracle import same_bits
from tests.tensors import qkv

THREADS, LAUNCHES = 8, 10_000
BUFFERS = 10  # results of a thread before they are looked at
SAMPLE = 5  # configs of a family, beside the defaults
CACHE = Path(os.environ["FA_TUNE_TEST_CACHE"])
CORE, STORE = Core(cache_dir=CACHE), ArtifactStore(CACHE)


def here() -> ArchLimits:
    return limits(torch.cuda.get_device_capability())


def built(wanted: list[tuple[Config, Workload]]) -> list[Artifact]:
    requests = [request(families.variant(config), w, here()) for config, w in wanted]
    return compiled(requests, STORE)


def able(family: KernelFamily, d_head: int, dtype: DType, d_head_v: int = 0) -> list[Config]:
    """What runs here, each config once."""
    found = [family.default_config(d_head, dtype, d_head_v=d_head_v)]
    for key in ("all", "fast"):
        found += family.configs(key, dtypes=[dtype], d_head=d_head, d_head_v=d_head_v)
    return [c for c in dict.fromkeys(found) if family.constraints(c, here()) is None]


def configs(d_head: int, dtype: DType, count: int = SAMPLE, *, d_head_v: int = 0) -> list[Config]:
    """Of each family that runs here: the default, one that counts tiles, and some others."""
    dice, found = random.Random(14), []
    for family in families.runnable(here()):
        default, *others = able(family, d_head, dtype, d_head_v)
        found += [default, *dice.sample(others, min(count, len(others)))]
    return list(dict.fromkeys([*found, *(scheduled_configs() if d_head == 128 else ())]))


def scheduled_configs() -> list[Config]:
    """One of each family that runs here, with a dynamic scheduler if the family has any."""
    return [
        max(able(family, 128, DType.FP16), key=counter_bytes)
        for family in families.runnable(here())
    ]


def counter_bytes(config: Config) -> int:
    """Of the counters of a config's first launch."""
    call = families.of(config).plan(config, "plain", families.of(config).compile_arch(here()))
    return call.launches[0].counter_bytes


def stream() -> int:
    return int(torch.cuda.current_stream().cuda_stream)


def launch(
    kernel: CoreKernel, workload: Workload, args: Tensors, on: int, device: int = CURRENT_DEVICE
) -> None:
    """With a workspace of its own, which torch gives to later work of the stream alone."""
    tensors = tensors_of(args)
    if n_bytes := kernel.workspace_bytes(workload, device):
        where = torch.cuda.current_device() if device == CURRENT_DEVICE else device
        with torch.cuda.device(where):
            room = torch.empty(n_bytes, dtype=torch.uint8, device="cuda")
        tensors.workspace = room.data_ptr()
    kernel.launch(problem_of(workload), tensors, on, device)


def by_core(kernel: CoreKernel, workload: Workload, inputs: Tensors) -> list[torch.Tensor]:
    """The outputs, full of NaN before, of a call on torch's current stream."""
    room = outputs_of(workload, fill=torch.nan)
    launch(kernel, workload, {**inputs, **room}, stream())
    return list(room.values())


def workloads(d_head: int, dtype: DType, d_head_v: int = 0) -> Iterator[Workload]:
    for workload in (
        Workload(3, 8, 8, 768, 1536, d_head, dtype),
        Workload(2, 6, 3, 413, 1031, d_head, dtype, causal=True, bottom_right=True, lse=True),
        Workload(1, 4, 1, 1031, 413, d_head, dtype, causal=True, softmax_scale=0.3),
        Workload(40, 16, 4, 257, 300, d_head, dtype, lse=True),
    ):
        yield replace(workload, d_head_v=d_head_v)


def bits() -> str:
    wanted = [
        (config, workload)
        for d_head, dtype in ((128, DType.FP16), (64, DType.BF16), (256, DType.FP16))
        for config in configs(d_head, dtype, SAMPLE if d_head == 128 else 1)
        for workload in workloads(d_head, dtype)
    ]
    wanted += [
        (config, workload)
        for config in configs(192, DType.BF16, 2, d_head_v=128)
        for workload in workloads(192, DType.BF16, 128)
    ]
    for (config, workload), artifact in zip(wanted, built(wanted), strict=True):
        inputs = make_inputs(workload, seed=14)
        expected = by_cupy(artifact, workload, inputs)
        kernel = CORE.kernel(KernelImage.of(artifact))  # loaded until its results are there
        found = by_core(kernel, workload, inputs)
        assert same_bits(found, expected), f"{config} on {workload.key}"
    return "right"


class Tenant:
    """A thread with a stream and inputs of its own."""

    def __init__(self, kernel: CoreKernel, artifact: Artifact, seed: int) -> None:
        # More tiles than multiprocessors, so that the scheduler counts.
        self.workload = Workload(3, 16, 16, 512, 512, 128, DType.FP16)
        self.inputs = make_inputs(self.workload, seed=seed)
        (self.expected,) = by_cupy(artifact, self.workload, self.inputs)
        self.stream = torch.cuda.Stream()
        self.kernel, self.wrong = kernel, torch.zeros((), dtype=torch.int64, device="cuda")
        self.launched = 0
        self.outs = [torch.empty_like(self.inputs["q"]) for _ in range(BUFFERS)]
        torch.cuda.synchronize()

    def run(self, launches: int) -> None:
        args = [{**self.inputs, "o": out} for out in self.outs]
        with torch.cuda.stream(self.stream):
            for _ in range(launches // BUFFERS):
                for out in self.outs:
                    out.fill_(torch.nan)
                for one in args:
                    launch(self.kernel, self.workload, one, self.stream.cuda_stream)
                    self.launched += 1
                for out in self.outs:
                    self.wrong += (out.view(torch.int16) != self.expected.view(torch.int16)).sum()


def threads() -> str:
    wanted = [(c, Workload(3, 16, 16, 512, 512, 128, DType.FP16)) for c in scheduled_configs()]
    for artifact in built(wanted):
        kernel = CORE.kernel(KernelImage.of(artifact))
        tenants = [Tenant(kernel, artifact, seed) for seed in range(THREADS)]
        running = [threading.Thread(target=t.run, args=(LAUNCHES // THREADS,)) for t in tenants]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        torch.cuda.synchronize()
        assert sum(t.launched for t in tenants) == LAUNCHES, "a thread has failed"
        assert [int(t.wrong) for t in tenants] == [0] * THREADS, artifact.variant
    return "right"


def graphs() -> str:
    workload = Workload(3, 16, 16, 512, 512, 128, DType.FP16)
    for artifact in built([(c, workload) for c in scheduled_configs()]):
        one, other = (make_inputs(workload, seed=seed) for seed in (1, 2))
        (expected,) = by_cupy(artifact, workload, other)
        kernel = CORE.kernel(KernelImage.of(artifact))
        refused = False
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                by_core(kernel, workload, one)
            except DriverError as error:
                refused = "fa_tune_prepare" in str(error)
        assert refused
        kernel.prepare()
        captured = []
        for _ in range(2):
            out = torch.empty_like(one["q"])
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(3):
                    launch(kernel, workload, {**one, "o": out}, stream())
            captured.append((graph, out, torch.cuda.Stream()))
        for name in ("q", "k", "v"):
            one[name].copy_(other[name])
        torch.cuda.synchronize()
        for _ in range(200):  # side by side, and beside launches that are not captured
            for graph, _, side in captured:
                with torch.cuda.stream(side):
                    graph.replay()
            (plain,) = by_core(kernel, workload, one)
        torch.cuda.synchronize()
        for found in (plain, *(out for _, out, _ in captured)):
            assert same_bits([found], [expected]), artifact.variant
    return "right"


def two_gpus() -> str:
    if torch.cuda.device_count() < 2:
        return "one GPU"
    workload = Workload(3, 16, 16, 512, 512, 128, DType.FP16)
    for artifact in built([(c, workload) for c in scheduled_configs()]):
        inputs = make_inputs(workload, seed=1)
        (expected,) = by_cupy(artifact, workload, inputs)
        kernel = CORE.kernel(KernelImage.of(artifact))
        there = qkv(**{n: t.to("cuda:1") for n, t in inputs.items()})
        results = []
        for _ in range(20):
            for device, given in ((0, inputs), (1, there)):
                out = torch.full_like(given["q"], torch.nan)
                of_device = torch.cuda.current_stream(device).cuda_stream
                launch(kernel, workload, {**given, "o": out}, of_device, device)
                results.append(out)
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)
        for out in results:
            assert same_bits([out.to("cuda:0")], [expected]), artifact.variant
    return "right"


def table() -> str:
    workload = Workload(2, 4, 4, 512, 512, 128, DType.FP16)
    chosen, *_ = families.defaults(128, DType.FP16, here())
    (artifact,) = built([(chosen, workload)])
    image, gpu = KernelImage.of(artifact), torch.cuda.get_device_name()
    made = CoreTable(CORE, [image], [entry(gpu, workload, image.config)], [image.config])
    inputs = make_inputs(workload, seed=1)
    room = outputs_of(workload, fill=torch.nan)
    made.launch(problem_of(workload), tensors_of({**inputs, **room}), stream())
    torch.cuda.synchronize()
    assert same_bits(room.values(), by_cupy(artifact, workload, inputs))
    assert "measured on" in made.why(workload)
    return "right"


if __name__ == "__main__":
    main(globals())
