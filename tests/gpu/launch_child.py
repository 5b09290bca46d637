"""Workers for checking tools, under which everything takes long: kernels on small problems that
nevertheless take every path, and hardly anything beside them, which would only be checked, too."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.model import Variant
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.gpu.jobs.verify import check_all
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import CheckCase, Tensors
from fa_tune.operations.torch_side import outputs_of, torch_side_of
from tests.gpu.cases import few_heads, small_caches, small_workloads
from tests.gpu.items import enqueue, handler, kernel_item
from tests.gpu.oracle import grown

MULTIPROCESSORS = 2  # what persistent grids are told, so that a few tiles are several for each CTA
GROWTH = 10.0  # of the scores: new maxima in each block, or after the first one none


def judged(kernel: CompiledKernel, item: Mapping[str, Any]) -> dict[str, Any]:
    """The product's own verdict after the same launches."""
    launch_all(kernel, item)
    return codec.dump(check_all(kernel, tuple(map(CheckCase, of_item(item))), seed=0))


def launch_few_heads(kernel: CompiledKernel, item: Mapping[str, Any]) -> int:
    """How many launches there were of decode kernels whose CTAs combine together, with parts enough
    for that, all of a GPU's multiprocessors at work."""
    config = families.parse(Variant.from_key(item["subject"]).config)
    assert isinstance(config, DecodeConfig)
    return launch_each(kernel, few_heads(config, item["traits"]))


def of_item(item: Mapping[str, Any]) -> tuple[Workload, ...]:
    """The small problems of an item's kernel."""
    kernel = Variant.from_key(item["subject"]), item["traits"]
    return small_workloads(*kernel) + small_caches(*kernel)


def inputs_of(w: Workload) -> Tensors:
    """Drawn on the host where they become e4m3, since racecheck reports torch's own kernel for it,
    and where results of a forward pass are among them."""
    draw = torch_side_of(w).inputs
    if not w.kv_e4m3 and w.op == FORWARD:
        return draw(w, seed=0)
    drawn = draw(w, seed=0, device="cpu")
    return {name: tensor.cuda() for name, tensor in drawn.items()}


def launch_all(_: CompiledKernel, item: Mapping[str, Any]) -> int:
    """Two launches per workload: scores that are alike, and some that grow towards the first key
    in the first batch and towards the last in the others.  Returns how many launches."""
    small = CompiledKernel(kernel_item(item), multiprocessors=MULTIPROCESSORS)
    return launch_each(small, of_item(item))


def launch_each(kernel: CompiledKernel, workloads: Sequence[Workload]) -> int:
    """The same of these workloads."""
    launches = 0
    for w in workloads:
        inputs = inputs_of(w)
        outputs = outputs_of(w)
        # e4m3 has no room for it, and a backward pass is given the sums of other scores.
        for grows in (False,) if w.kv_e4m3 or w.op != FORWARD else (False, True):
            if grows:
                grown(inputs["k"][:1], -GROWTH)
                grown(inputs["k"][1:], GROWTH)
            enqueue(kernel, w, {**inputs, **outputs})
            torch.cuda.synchronize()
            launches += 1
    return launches


handle = handler(launch_all)
judge = handler(judged)
handle_few_heads = handler(launch_few_heads)
