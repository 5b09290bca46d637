"""What forward and backward passes are given."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fa_tune.op.fallback_warning import tell_of_copies

HALF = (torch.float16, torch.bfloat16)
WHOLE_D_HEAD = 32  # of which head dimensions are multiples in our kernels
_ROW_BYTES = 16
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


def has_whole_rows(tensor: Tensor) -> bool:
    """Whether each row is in one piece and begins at a multiple of 16 bytes, as kernels read it."""
    *outer, last = tensor.stride()
    size, addresses = tensor.element_size(), [tensor.data_ptr()]
    addresses += (s * size for s, n in zip(outer, tensor.shape, strict=False) if n > 1)
    return last == 1 and not any(address % _ROW_BYTES for address in addresses)


def with_whole_rows(tensor: Tensor) -> Tensor:
    """The same, or a copy that has whole rows, with a warning."""
    if has_whole_rows(tensor):
        return tensor
    tell_of_copies()
    return tensor.clone(memory_format=torch.contiguous_format)


def note_written(*tensors: Tensor | None) -> None:
    """Tell autograd that a kernel has written to tensors, as torch's own operators do: a backward
    pass that needs what was there raises RuntimeError.  A compiled graph does so itself."""
    if torch.compiler.is_compiling():
        return
    for tensor in tensors:
        if tensor is not None and not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)
