"""Entries to build registries from.  Session fixtures, so that property tests may use them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from fa_tune.core.model import Provenance, Variant
from fa_tune.core.stats import Interval, Ratio
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.operations import flops
from fa_tune.store.registry.schema import (
    Confirmed,
    Entry,
    Gpu,
    InputFigures,
    RunnerUp,
    VerdictSummary,
)
from tests.store.test_recordings import ORIGIN

MakeEntry = Callable[..., Entry]


def variant(B_c: int) -> Variant:
    words = "async+eager+swizzled+load_2_2_2_tiles+buffer+opt_softmax"
    return Variant("sm80", f"(FP16, 128, 64, {B_c}, 4): {words}")


@pytest.fixture(scope="session")
def make_entry() -> MakeEntry:
    """`make_entry(seq_len=…, method=…, n=…, …)`: one good entry with any field replaced;
    names of provenance fields are replaced there."""

    def make(
        seq_len: int = 4096,
        *,
        d_head: int = 128,
        dtype: DType = DType.FP16,
        causal: bool = False,
        gpu: str = "NVIDIA H200",
        compute_capability: tuple[int, int] = (9, 0),
        method: str = "ncu",
        **changes: Any,
    ) -> Entry:
        workload = benchmark_workload(seq_len, d_head, dtype, causal=causal)
        median_s = changes.get("median_s", 6.315e-3)
        names = {f.name for f in dataclasses.fields(Provenance)}
        of_provenance = {k: changes.pop(k) for k in sorted(changes) if k in names}
        provenance = dataclasses.replace(ORIGIN, gpu=gpu, method=method, **of_provenance)
        fields: dict[str, Any] = {
            "gpu": Gpu(gpu, compute_capability),
            "workload": workload,
            "method": method,
            "inputs": "trained",
            "source": "measured",
            "recording": None,
            "chosen": variant(64),
            "traits": "plain",
            "reason": "it comes first of 2 tied candidates by less shared memory",
            "median_s": median_s,
            "interval_s": (median_s * 0.999, median_s * 1.002),
            "n": 5,
            "tflops": flops.tflops(flops.matmul_flop(workload), median_s),
            "default": variant(32),
            "ratio_to_default": Ratio(0.931, Interval(0.929, 0.934)),
            "ratio_to_references": {
                "cudnn": Ratio(1.6, None),
                "fa2": Ratio(0.954, Interval(0.95, 0.958)),
            },
            "tie_set": (variant(64), variant(128)),
            "runners_up": (
                RunnerUp(variant(128), median_s * 1.001, Ratio(1.001, Interval(0.999, 1.003))),
            ),
            "verdict": VerdictSummary(True, 4, 4.9e-4, 9.8e-4),
            "confirmation": Confirmed(
                variant(64), variant(32), Ratio(0.935, Interval(0.931, 0.94)), 40, True
            ),
            "per_inputs": {
                "normal": InputFigures(median_s * 1.01, Ratio(0.94, Interval(0.93, 0.95))),
                "falling": InputFigures(median_s * 1.2, None),
            },
            "provenance": provenance,
            "served": None,
        }
        if "chosen" in changes:  # it is about another one
            fields["confirmation"] = None
        return Entry(**(fields | changes))

    return make
