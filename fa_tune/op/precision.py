"""Functions whose matrix products keep the precision of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def without_autocast(function: Callable[P, R]) -> Callable[P, R]:
    """The same function where autocast, which multiplies in half precision, is off."""

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
            return function(*args, **kwargs)

    return called
