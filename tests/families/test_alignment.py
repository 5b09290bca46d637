"""Rows that no copy of 16 bytes can begin at are refused before a launch, whoever asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from fa_tune import families
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import DType, Workload
from fa_tune.families.launch import LaunchArgs, LaunchDevice, TensorArg

WORKLOAD = Workload(2, 4, 2, 128, 256, 64, DType.FP16)
QUERIES, KEYS = (128 * 4 * 64, 4 * 64, 64), (256 * 2 * 64, 2 * 64, 64)
GOOD = LaunchArgs.forward(
    *(TensorArg(i << 20, s) for i, s in enumerate((QUERIES, KEYS, KEYS, QUERIES), 1)),
    scratch=9 << 20,
)
DEVICE = LaunchDevice(multiprocessors=132, l2_bytes=50 << 20)
FORMS = (
    "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+opt_softmax",
    "(FP16, 64, 256, 64, 8): async+eager+swizzled+load_1_1_1_tiles+opt_softmax+stages_3+rescale_8"
    "+pingpong",
    "sm90(FP16, 64, 128x64): stages_2+overlap+dynamic",
)


def shifted() -> Iterator[tuple[str, LaunchArgs]]:
    """One tensor at a time with an address or a stride of 8 bytes more."""
    for name in ("q", "k", "v", "o"):
        tensor = GOOD[name]
        yield name.upper(), with_tensor(name, replace(tensor, address=tensor.address + 8))
        for i in range(3):
            strides = list(tensor.strides)
            strides[i] += 4
            moved = replace(tensor, strides=(strides[0], strides[1], strides[2]))
            yield name.upper(), with_tensor(name, moved)


def with_tensor(name: str, tensor: TensorArg) -> LaunchArgs:
    """GOOD with another tensor."""
    return replace(GOOD, tensors={**GOOD.tensors, name: tensor})


@pytest.mark.parametrize("form", FORMS)
def test_a_row_between_two_chunks_is_refused(form: str) -> None:
    family = families.get("sm90" if form.startswith("sm90") else "sm80")
    for name, arguments in shifted():
        with pytest.raises(InvalidConfig, match=f"^{name} must have every row") as refused:
            family.kernel_args(family.parse(form), WORKLOAD, arguments, DEVICE)
        assert "\n" not in str(refused.value)


def test_strides_that_nothing_steps_along_are_free() -> None:
    one = replace(WORKLOAD, batch=1, heads=1, kv_heads=1)
    free = with_tensor("q", replace(GOOD.q, strides=(3, 256, 5)))
    assert free.checked(one) == (one.diagonal, one.scale)
