"""What autocast changes, and what it leaves as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """The same function where autocast, which multiplies in half precision, is off."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return called


def autocast(*tensors: Tensor) -> tuple[Tensor, ...]:
    """The same as torch's own attention gets them where autocast is on."""
    return tuple(map(_cast, tensors))


def _cast(tensor: Tensor) -> Tensor:
    kind = tensor.device.type
    casts = (
        kind != "meta"  # which has no autocast
        and torch.is_autocast_enabled(kind)
        and tensor.is_floating_point()
        and tensor.dtype != torch.float64
    )
    return tensor.to(torch.get_autocast_dtype(kind)) if casts else tensor
