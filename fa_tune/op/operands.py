"""What forward and backward passes are given."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Of q, k, v and the slopes.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class Done(NamedTuple):
    """A forward pass that is done, and the gradients of its result and, if it has one, of its
    log-sum-exp."""

    grad_out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor
    grad_lse: Tensor | None = None


class Lengths(NamedTuple):
    """Sequence i of a packed batch is rows cum_q[i] to cum_q[i + 1] of Q and cum_kv[i] to
    cum_kv[i + 1] of K, int32 [batch + 1] on the device; none is longer than `longest_q` and
    `longest_kv`."""

    cum_q: Tensor
    cum_kv: Tensor
    longest_q: int
    longest_kv: int


def note_written(*tensors: Tensor | None) -> None:
    """Tell autograd that a kernel has written to tensors, as torch's own operators do: a backward
    pass that needs what was there raises RuntimeError.  A compiled graph does so itself."""
    if torch.compiler.is_compiling():
        return
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
