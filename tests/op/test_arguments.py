"""What `attention` and its companions refuse before an operator sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.op import api, attention, explain, prepare
from fa_tune.op.precision import autocast

NO_ARGUMENTS: dict[str, dict[str, Any]] = {
    "window as a number": {"window": 5},
    "window of three sides": {"window": (1, 2, 3)},
    "window of half a key": {"window": (1.5, 0)},
    "window as words": {"window": ("1", "2")},
    "q": {"q": numpy.zeros((2, 5, 4, 16))},
    "k": {"k": None},
    "v": {"v": [[1.0]]},
    "sink": {"sink": numpy.zeros(4)},
    "alibi_slopes": {"alibi_slopes": [0.5] * 4},
}


@pytest.mark.parametrize("name", NO_ARGUMENTS)
@pytest.mark.parametrize("function", [attention, explain])
def test_what_is_no_such_argument_is_refused_by_its_name(
    name: str, function: Callable[..., Any]
) -> None:
    q = torch.zeros(2, 5, 4, 16, dtype=torch.float16)
    given = {"q": q, "k": q, "v": q} | NO_ARGUMENTS[name]
    three = [given.pop(one) for one in "qkv"]
    with pytest.raises(InvalidConfig) as told:
        function(*three, **given)
    assert "\n" not in str(told.value)
    if function is attention:
        assert str(told.value).startswith(name.split()[0])


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_tensors_that_are_on_no_gpu_are_refused(device: str) -> None:
    q = torch.zeros(2, 5, 4, 16, dtype=torch.float16, device=device)
    with pytest.raises(InvalidConfig, match=device):
        explain(q, q, q)
    with pytest.raises(InvalidConfig, match=device):
        prepare(like=(q, q, q))


def test_a_backward_pass_that_needs_what_was_overwritten_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        api, "_PLAIN", (None, None, lambda *_: None)
    )  # as a kernel: unseen by torch
    q, out = torch.zeros(2, 5, 4, 16), torch.ones(2, 5, 4, 16)
    weight = torch.ones(16, requires_grad=True)
    loss = (out * weight).sum()
    attention(q, q, q, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
    with torch.inference_mode():
        attention(q, q, q, out=torch.empty_like(q))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_autocast_casts_what_it_casts_for_torchs_attention(dtype: torch.dtype) -> None:
    q = torch.zeros(1, 2, 4, 8, dtype=dtype)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = torch.nn.functional.scaled_dot_product_attention(q, q, q).dtype
        found, whole = autocast(q, torch.zeros(2, dtype=torch.int32))
    assert (found.dtype, whole.dtype) == (expected, torch.int32)
