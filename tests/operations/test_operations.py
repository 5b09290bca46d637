"""What an operation says of its workloads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fa_tune import operations
from fa_tune.core import dtypes
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload, benchmark_workload
from fa_tune.operations import flops
from fa_tune.operations.traits import Traits

W = Workload(2, 6, 3, 100, 300, 64, DType.BF16)


def test_the_tensors_of_a_forward_pass() -> None:
    found = {t.name: (t.shape, t.dtype, t.output) for t in operations.get("forward").tensors(W)}
    assert found == {
        "q": ((2, 100, 6, 64), dtypes.BF16, False),
        "k": ((2, 300, 3, 64), dtypes.BF16, False),
        "v": ((2, 300, 3, 64), dtypes.BF16, False),
        "o": ((2, 100, 6, 64), dtypes.BF16, True),
    }
    *_, lse = operations.get("forward").tensors(replace(W, lse=True))
    assert (lse.name, lse.shape, lse.dtype, lse.output) == ("lse", (2, 6, 100), dtypes.FP32, True)
    assert lse.tolerance == 2e-5


def test_v_and_o_have_the_head_dimension_of_values() -> None:
    w = replace(W, d_head_v=32)
    shapes = {t.name: t.shape for t in operations.get("forward").tensors(w)}
    assert shapes["v"] == (2, 300, 3, 32)
    assert shapes["o"] == (2, 100, 6, 32)
    assert shapes["q"][-1] == shapes["k"][-1] == 64


def test_bytes_are_those_of_the_tensors() -> None:
    queries, keys = 2 * 100 * 6 * 64 * 2, 2 * 300 * 3 * 64 * 2
    assert flops.input_bytes(W) == queries + 2 * keys
    assert flops.moved_bytes(W) == 2 * (queries + keys)
    assert flops.moved_bytes(replace(W, lse=True)) == 2 * (queries + keys) + 4 * 2 * 6 * 100


def test_the_work_is_that_of_the_workloads_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Twice(type(operations.get("forward"))):  # type: ignore[misc]
        name = "twice"

        def matmul_flop(self, workload: Workload) -> int:
            return 2 * super().matmul_flop(workload)

    monkeypatch.setitem(operations._OPERATIONS, "twice", Twice())
    assert flops.matmul_flop(replace(W, op="twice")) == 2 * flops.matmul_flop(W)


def test_an_operation_that_nobody_knows_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="unknown operation 'sideways'; known: forward"):
        flops.matmul_flop(replace(W, op="sideways"))


def test_the_traits_of_a_workload() -> None:
    traits = operations.get("forward").traits
    assert traits(benchmark_workload(4096, 128, DType.FP16), (128, 128)) == Traits()
    assert traits(replace(W, causal=True), (100, 128)) == Traits(causal=True, ragged=True)
    assert traits(W, (100, 300), lse=True) == traits(replace(W, lse=True), (100, 300))
