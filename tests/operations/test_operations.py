"""What an operation says of its workloads."""

from dataclasses import replace

import pytest

from fa_tune import operations
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.operations import flops

W = Workload(2, 6, 3, 100, 300, 64, DType.BF16)


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
    with pytest.raises(
        InvalidConfig, match="unknown operation 'sideways'; known: backward, forward"
    ):
        flops.matmul_flop(replace(W, op="sideways"))
