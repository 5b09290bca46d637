"""A worker that launches many kernels on many problems, one after the other without a pause,
and all of them once more in another order: every result must be the same."""

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fa_tune.core import codec
from fa_tune.core.arch import limits
from fa_tune.gpu.guard import guarded, use_device
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.workers.main import Report
from tests.gpu.cases import Case, request
from tests.gpu.items import load, results
from tests.gpu.oracle import bits, inputs_for

HOPPER = limits((9, 0))
WEIGHTS = 1048573  # of places: a prime, so that no power of two of rows has the same


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

    def launch() -> torch.Tensor:
        inputs = inputs_for(w, case.layout, case.seed, "cuda", case.growth)
        return _figures(results(kernel, w, inputs))

    return launch


def _figures(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    nan = sum(t.isnan().sum() for t in tensors)
    plain = weighted = torch.zeros((), dtype=torch.int64, device="cuda")
    for t in tensors:
        numbers = bits(t.flatten()).long()
        plain = plain + numbers.sum()
        places = torch.arange(numbers.numel(), device="cuda") % WEIGHTS
        weighted = weighted + (numbers * places).sum()
    return torch.stack([torch.as_tensor(nan, device="cuda"), plain, weighted])
