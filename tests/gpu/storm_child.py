"""A worker that launches many kernels on many problems, one after the other without a pause,
and all of them once more in another order: every result must be the same."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fa_tune.core import codec
from fa_tune.core.arch import limits
from fa_tune.core.workload import Workload
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import Tensors
from fa_tune.workers.main import Report
from tests.gpu.cases import Case, request
from tests.gpu.items import load, results
from tests.gpu.oracle import bits
from tests.tensors import qkv

HOPPER = limits((9, 0))
POOL = 1 << 26  # random numbers that all inputs are cut out of
GAP = 64  # elements, so that every row stays at a multiple of 16 bytes


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """`shared`: device, kernels (`variant @ traits` -> subject, cubin, symbol).  Items: cases,
    seed.  Value: launches, names of cases whose two results differ or have NaN."""
    use_device(int(shared["device"]))
    kernels = {name: load(item) for name, item in shared["kernels"].items()}
    for name, item in items.items():
        report.begin(name)
        found = guarded(report, name, functools.partial(storm, kernels, item))
        if found is not None:
            report.done(name, found)


def storm(kernels: Mapping[str, CompiledKernel], item: Mapping[str, Any]) -> dict[str, Any]:
    """Both rounds of one item."""
    cases = [codec.load(Case, case) for case in item["cases"]]
    launches = [_launch_of(kernels, case) for case in cases]
    dice = random.Random(int(item["seed"]))
    rounds = [_round(launches, dice) for _ in range(2)]
    differ = (rounds[0] != rounds[1]).any(1).nonzero().flatten().tolist()
    nan = rounds[0][:, 0].nonzero().flatten().tolist()
    return {
        "launches": 2 * len(cases),
        "differ": [cases[i].name for i in differ],
        "nan": [cases[i].name for i in nan],
    }


Launch = Callable[[], torch.Tensor]


def _round(launches: Sequence[Launch], dice: random.Random) -> torch.Tensor:
    """Launch all in random order; (NaN, sum of bits, weighted sum of bits) of each."""
    found = torch.zeros(len(launches), 3, dtype=torch.int64, device="cuda")
    order = list(range(len(launches)))
    dice.shuffle(order)
    for index in order:
        found[index] = launches[index]()
    torch.cuda.synchronize()
    return found


def _launch_of(kernels: Mapping[str, CompiledKernel], case: Case) -> Launch:
    made = request(case.variant, case.workload, HOPPER)
    kernel = kernels[f"{made.variant.key} @ {made.traits}"]
    w = case.workload

    return lambda: _figures(results(kernel, w, _inputs(w, case.seed)))


def _figures(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    nan = sum(t.isnan().sum() for t in tensors)
    plain = weighted = torch.zeros((), dtype=torch.int64, device="cuda")
    for t in tensors:
        numbers = bits(t.flatten()).long()
        plain = plain + numbers.sum()
        weighted = weighted + (numbers * _weights()[: numbers.numel()]).sum()
    return torch.stack([torch.as_tensor(nan, device="cuda"), plain, weighted])


@functools.cache
def _weights() -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(1)
    return torch.randint(1 << 20, (POOL,), generator=generator, device="cuda")


@functools.cache
def _pool(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(2)
    return torch.randn(POOL, generator=generator, device="cuda").to(dtype)


def _inputs(w: Workload, seed: int) -> Tensors:
    """Somewhere in the pool, with rows of a random distance."""
    dice = random.Random(seed)

    def cut(seq_len: int, heads: int) -> torch.Tensor:
        row = heads * w.d_head + GAP * dice.randrange(3)
        strides = (seq_len * row, row, w.d_head, 1)
        size = w.batch * seq_len * row
        start = GAP * dice.randrange((POOL - size) // GAP)
        shape = (w.batch, seq_len, heads, w.d_head)
        return _pool(w.dtype.to_torch_dtype()).as_strided(shape, strides, start)

    return qkv(
        cut(w.seq_len_q, w.heads), cut(w.seq_len_kv, w.kv_heads), cut(w.seq_len_kv, w.kv_heads)
    )
