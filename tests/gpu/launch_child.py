"""Workers for checking tools, under which everything takes long: kernels on small problems that
nevertheless take every path, and hardly anything beside them, which would only be checked, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fa_tune import families
from fa_tune.core import codec
from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.gpu.jobs.verify import check_all
from fa_tune.gpu.launch import CompiledKernel
from fa_tune.operations.base import CheckCase, Tensors
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.operations.torch_side import outputs_of
from fa_tune.workers.main import Report
from tests.gpu.cases import few_heads, small_caches, small_workloads
from tests.gpu.items import check_kernels, enqueue, kernel_item
from tests.gpu.oracle import grown

MULTIPROCESSORS = 2  # what persistent grids are told, so that a few tiles are several for each CTA
GROWTH = 10.0  # of the scores: new maxima in each block, or after the first one none


def handle(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Items: subject, traits, cubin, symbol.  Value: how many launches there were."""
    check_kernels(shared, items, report, launch_all)


def judge(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """The same items; the results are looked at as well.  Value: the product's own verdict."""

    def judged(kernel: CompiledKernel, item: Mapping[str, Any]) -> dict[str, Any]:
        launch_all(kernel, item)
        cases = tuple(map(CheckCase, of_item(item)))
        return codec.dump(check_all(kernel, cases, seed=0))

    check_kernels(shared, items, report, judged)


def handle_few_heads(shared: Mapping[str, Any], items: Mapping[str, Any], report: Report) -> None:
    """Decode kernels whose CTAs combine together, with parts enough for that, all of a GPU's
    multiprocessors at work.  Value: how many launches there were."""

    def launched(kernel: CompiledKernel, item: Mapping[str, Any]) -> int:
        variant = Variant.from_key(item["subject"])
        config = families.parse(variant.config)
        assert isinstance(config, DecodeConfig)
        return launch_each(kernel, few_heads(config, item["traits"]))

    check_kernels(shared, items, report, launched)


def of_item(item: Mapping[str, Any]) -> tuple[Workload, ...]:
    """The small problems of an item's kernel."""
    kernel = Variant.from_key(item["subject"]), item["traits"]
    return small_workloads(*kernel) + small_caches(*kernel)


def inputs_of(w: Workload) -> Tensors:
    """Drawn on the host where they become e4m3: racecheck reports torch's own kernel for it."""
    if not w.kv_e4m3:
        return make_inputs(w, seed=0)
    drawn = make_inputs(w, seed=0, device="cpu")
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
        for grows in (False,) if w.kv_e4m3 else (False, True):  # e4m3 has no room for it
            if grows:
                grown(inputs["k"][:1], -GROWTH)
                grown(inputs["k"][1:], GROWTH)
            enqueue(kernel, w, {**inputs, **outputs})
            torch.cuda.synchronize()
            launches += 1
    return launches
