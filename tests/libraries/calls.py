"""Calls of libraries by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fa_tune import libraries
from fa_tune.core.workload import Workload
from fa_tune.operations.base import Problem, Tensors

if TYPE_CHECKING:
    import torch


def run(name: str, given: Tensors, workload: Workload) -> torch.Tensor:
    """What a library computes, [batch, seq, heads, d_v]."""
    found = libraries.get(name).bind(Problem(workload, given, {}))()
    return found["o"].detach()
