"""What can be said of `fa_tune.runtime` without a GPU: problems from tensors, and refusals."""

from __future__ import annotations

from typing import Any

import pytest

from fa_tune.errors import InvalidConfig
from fa_tune.model import DType, Workload

torch = pytest.importorskip("torch")
pytest.importorskip("cupy")


def tensors(*shapes: tuple[int, ...], dtype: Any = None) -> list[Any]:
    return [torch.zeros(shape, dtype=dtype or torch.bfloat16) for shape in shapes]


def test_tensors_make_the_workload() -> None:
    from fa_tune.runtime import workload_of

    q, k, v = tensors((2, 5, 8, 64), (2, 7, 2, 64), (2, 7, 2, 64))
    made = workload_of(q, k, v, causal=True, bottom_right=True, lse=True, softmax_scale=0.5)
    assert made == Workload(2, 8, 2, 5, 7, 64, DType.BF16, True, True, True, 0.5)


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        (((2, 5, 64), (2, 5, 64), (2, 5, 64)), None),
        (((2, 5, 8, 64), (2, 7, 8, 64), (2, 6, 8, 64)), None),
        (((2, 5, 8, 64), (3, 5, 8, 64), (3, 5, 8, 64)), None),
        (((2, 5, 8, 64), (2, 5, 8, 128), (2, 5, 8, 128)), None),
        (((2, 5, 8, 64),) * 3, torch.float32),
    ],
)
def test_tensors_that_make_none_are_refused(shapes: Any, dtype: Any) -> None:
    from fa_tune.runtime import workload_of

    with pytest.raises(InvalidConfig):
        workload_of(*tensors(*shapes, dtype=dtype))


def test_tensors_on_the_cpu_are_refused_before_a_gpu_is_asked_for() -> None:
    from fa_tune.runtime import attention

    with pytest.raises(InvalidConfig, match="must be on a GPU; Q is on cpu"):
        attention(*tensors(*((1, 4, 2, 64),) * 3))
