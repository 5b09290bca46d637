"""What forward and backward passes are given."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

# Of q, k, v and the slopes.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


class Done(NamedTuple):
    """A forward pass that is done, and the gradient of its result."""

    grad_out: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    out: Tensor
    lse: Tensor


class Lengths(NamedTuple):
    """Sequence i of a packed batch is rows cum_q[i] to cum_q[i + 1] of Q and cum_kv[i] to
    cum_kv[i + 1] of K, int32 [batch + 1] on the device; none is longer than `longest_q` and
    `longest_kv`."""

    cum_q: Tensor
    cum_kv: Tensor
    longest_q: int
    longest_kv: int
