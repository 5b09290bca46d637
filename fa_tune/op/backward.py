"""Gradients by the backward passes that torch has, with our output and log-sum-exp.

A sink is in the log-sum-exp, by which the passes have their weights, and so is taken account of.
V of another head dimension is brought to that of Q and K, or they to V's, by columns of zeros.
What changes scores has no such pass: `products`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from fa_tune.libraries import cudnn
from fa_tune.libraries.fa2 import no_dropout
from fa_tune.op import flash2, products
from fa_tune.op.operands import Done, Gradients, Lengths, with_whole_rows
from fa_tune.op.traits import Traits, bounds

Three = tuple[Tensor, Tensor, Tensor]


class Mask(NamedTuple):
    """What a query sees, counted from its place: i + seq_len_kv - seq_len_q.  None: all on that
    side.  `scale` multiplies scores."""

    left: int | None = None
    right: int | None = None
    scale: float | None = None

    @property
    def is_causal(self) -> bool:
        """Whether it is the mask that has a name."""
        return self.left is None and self.right == 0

    @property
    def is_full(self) -> bool:
        """Whether nothing is hidden."""
        return self.left is None and self.right is None


# Of a pass in which every row sees a key and every key is seen.
Kernel = Callable[[Done, Mask], Three]
# Of a packed batch; what is in rows of no sequence does not matter.
Packed = Callable[[Done, Mask, Lengths], Three]

_CUDNN_D_HEAD = 128
_CUDNN_LEAST_LENGTH = 64


def gradients(done: Done, traits: Traits, kernel: Kernel | None = None) -> Gradients:
    """Gradients of q, k, v and the slopes, contiguous; those of slopes are empty without.

    q, k: [batch, seq_len, heads, d_head]; v, out, grad_out: with d_v; lse: fp32 [batch, heads,
    seq_len_q], -inf for a row that sees nothing.  `kernel` None: `of_torch`.
    """
    if not traits.masks_only or _is_too_wide(done):
        return products.gradients(done, traits)
    q, k, v = (with_whole_rows(t) for t in done[1:4])
    first, last = bounds(traits, q.shape[1], k.shape[1])
    parts = _parts(slice(0, q.shape[1]), k.shape[1], first, last)
    is_whole = parts[:1] and parts[0][:2] == (slice(0, q.shape[1]), slice(0, k.shape[1]))
    room = torch.empty_like if is_whole else torch.zeros_like
    dq, dk, dv = (room(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    for part in parts:
        rows, keys = part.rows, part.keys
        of_part = Done(
            done.grad_out[:, rows].contiguous(),
            *(q[:, rows], k[:, keys], v[:, keys], done.out[:, rows]),
            done.lse[:, :, rows].contiguous(),
            None if done.grad_lse is None else done.grad_lse[:, :, rows],
        )
        alike, mask = _of_one_d_head(of_part, part.mask._replace(scale=traits.scale))
        found = _cut((kernel or of_torch)(alike, mask), of_part)
        if is_whole:
            dq, dk, dv = (t.contiguous() for t in found)
        else:
            dq[:, rows] = found[0]
            dk[:, keys] += found[1]
            dv[:, keys] += found[2]
    return dq, dk, dv, no_slopes(done)


def no_slopes(done: Done) -> Tensor:
    """The gradient of slopes where there are none."""
    return torch.empty(0, dtype=torch.float32, device=done.q.device)


class _Part(NamedTuple):
    """Rows that see some of these keys."""

    rows: slice
    keys: slice
    mask: Mask


def _parts(rows: slice, n_kv: int, first: int | None, last: int | None) -> list[_Part]:
    """A problem in which row i sees keys i + first to i + last, as those that kernels compute: one,
    or more where FlashAttention 2 would not read it."""
    begin = rows.start if last is None else max(rows.start, -last)
    end = rows.stop if first is None else min(rows.stop, n_kv - first)
    key = 0 if first is None else max(0, begin + first)
    end_key = n_kv if last is None else min(n_kv, end + last)
    if begin >= end or key >= end_key:
        return []
    # Where kernels count from: the last row stands at the last key.
    place = (end_key - key) - (end - begin) - begin + key
    left = None if first is None else place - first
    right = None if last is None else last - place
    n_rows, n_keys = end - begin, end_key - key
    if not flash2.reads(left, right, n_rows, n_keys):
        if last is None or last >= end_key - 1 - begin:  # nothing is hidden on the right
            seen = _Part(slice(begin, end - n_keys), slice(key, end_key), Mask())
            return [seen, *_parts(slice(end - n_keys, end), n_kv, first, None)]
        whole = end_key - 1 - last  # from here on rows see the last key
        before = _parts(slice(begin, whole), n_kv, first, last)
        return [*before, *_parts(slice(whole, end), n_kv, first, None)]
    return [_Part(slice(begin, end), slice(key, end_key), Mask(left, right))]


def of_torch(done: Done, mask: Mask) -> Three:
    """By cuDNN where it is the faster one and takes the problem, else by FlashAttention 2."""
    kernel = _cudnn if _suits_cudnn(done.q, done.k, mask) else _flash2
    parts = zip(*(t.split(flash2.MOST_SEQUENCES) for t in done[:6]), strict=True)
    found = [kernel(Done(*part), mask) for part in parts]
    dq, dk, dv = found[0] if len(found) == 1 else map(torch.cat, zip(*found, strict=True))
    return dq, dk, dv


def packed_gradients(
    done: Done, lengths: Lengths, traits: Traits, kernel: Packed | None = None
) -> Gradients:
    """Gradients of a packed batch, by FlashAttention 2, which wants an infinite log-sum-exp of rows
    that see no key; zeros in rows of no sequence.  q, k: [rows, heads, d_head]; lse: fp32 [heads,
    total_q].  `kernel` None: FlashAttention 2's."""
    right = 0 if traits.causal else traits.window_right
    longest = (lengths.longest_q, lengths.longest_kv)
    read = flash2.reads(traits.window_left, right, *longest)
    if not (traits.masks_only and read) or _is_too_wide(done):
        return products.packed_gradients(done, lengths, traits)
    lse = done.lse.abs().where(done.lse.isinf(), done.lse)
    mask = Mask(traits.window_left, right, traits.scale)
    q, k, v = (with_whole_rows(t) for t in done[1:4])
    alike, mask = _of_one_d_head(done._replace(q=q, k=k, v=v, lse=lse), mask)
    found = _cut(_of_sequences(alike, mask, lengths, kernel or _flash2), done)
    dq, dk, dv = (t.contiguous() for t in found)
    return dq, dk, dv, torch.empty(0, dtype=torch.float32, device=dq.device)


def _of_sequences(done: Done, mask: Mask, lengths: Lengths, kernel: Packed) -> Three:
    """Some sequences at a time, since a grid has no place for more, and zeros in rows of none."""
    count, most = lengths.cum_q.numel() - 1, flash2.MOST_SEQUENCES
    if count == 0:
        return torch.zeros_like(done.q), torch.zeros_like(done.k), torch.zeros_like(done.v)
    found: list[Three] = []
    for begin in range(0, count, most):
        some = slice(begin, begin + most + 1)
        part = lengths._replace(cum_q=lengths.cum_q[some], cum_kv=lengths.cum_kv[some])
        dq, dk, dv = kernel(done, mask, part)
        for tensor, starts in ((dq, part.cum_q), (dk, part.cum_kv), (dv, part.cum_kv)):
            row = torch.arange(len(tensor), device=tensor.device)[:, None, None]
            tensor.masked_fill_((row < starts[0]) | (row >= starts[-1]), 0)
        found.append((dq, dk, dv))
    dq, dk, dv = (sum(of_all[1:], of_all[0]) for of_all in zip(*found, strict=True))
    return dq, dk, dv


_LSE_COLUMNS = 8  # by so many head dimensions differ


def _is_too_wide(done: Done) -> bool:
    """Whether the gradient of the log-sum-exp has no place in a kernel."""
    wide = max(done.q.shape[-1], done.v.shape[-1]) + _LSE_COLUMNS
    return done.grad_lse is not None and wide > flash2.MOST_D_HEAD


def _of_one_d_head(done: Done, mask: Mask) -> tuple[Done, Mask]:
    """With columns behind its own.  Zeros leave scores, outputs and gradients as they are.

    Kernels take the sum over columns of output times gradient from what scores get.  So one where
    the gradient is 1 and the output minus that of the log-sum-exp adds it; two have its digits."""
    d_head, d_v = done.q.shape[-1], done.v.shape[-1]
    wide = max(d_head, d_v)
    if done.grad_lse is not None:
        wide += _LSE_COLUMNS
    elif d_head == d_v:
        return done, mask
    scale = 1 / math.sqrt(d_head) if mask.scale is None else mask.scale
    grad_out, q, k, v, out = (torch.nn.functional.pad(t, (0, wide - t.shape[-1])) for t in done[:5])
    if done.grad_lse is not None:
        taken = -done.grad_lse.transpose(-1, -2)
        out[..., d_v] = taken
        out[..., d_v + 1] = taken - out[..., d_v]
        grad_out[..., d_v : d_v + 2] = 1
    return Done(grad_out, q, k, v, out, done.lse), mask._replace(scale=scale)


def _cut(found: Three, done: Done) -> Three:
    """Gradients without what is behind their own columns."""
    dq, dk, dv = found
    return dq[..., : done.q.shape[-1]], dk[..., : done.k.shape[-1]], dv[..., : done.v.shape[-1]]


def _suits_cudnn(q: Tensor, k: Tensor, mask: Mask) -> bool:
    """Its causal mask is aligned top-left."""
    n_q, n_kv = q.shape[1], k.shape[1]
    return (
        (mask.is_full or (mask.is_causal and n_q == n_kv))
        and _has_fast_cudnn(q.device.index)
        and q.shape[3] <= _CUDNN_D_HEAD
        and min(n_q, n_kv) >= _CUDNN_LEAST_LENGTH
        and not torch.are_deterministic_algorithms_enabled()
        and not torch.cuda.is_current_stream_capturing()  # it may have to plan
    )


@cache
def _has_fast_cudnn(device: int) -> bool:
    version = torch.backends.cudnn.version() or 0
    return torch.cuda.get_device_capability(device)[0] in (9, 10) and version >= 91000


def _flash2(done: Done, mask: Mask, lengths: Lengths | None = None) -> Three:
    seed, offset = no_dropout(done.q)
    windowed = not (mask.is_causal or mask.is_full)
    sizes = lengths or (None, None, done.q.shape[1], done.k.shape[1])
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        *(done.grad_out.contiguous(), *done[1:6], *sizes, 0.0, mask.is_causal, seed, offset),
        scale=mask.scale,
        window_size_left=mask.left if windowed else None,
        window_size_right=mask.right if windowed else None,
    )
    return dq, dk, dv


def _cudnn(done: Done, mask: Mask) -> Three:
    """torch keeps a plan by the strides of Q, K and V alone, and reads O and its gradient by those
    that they had in the first call: here they are contiguous, and Q lies as in no program."""
    tensors = (done.grad_out.contiguous(), _apart(done.q), done.k, done.v, done.out.contiguous())
    dropout = no_dropout(done.q)
    return cudnn.gradients((*tensors, done.lse), dropout, causal=mask.is_causal, scale=mask.scale)


def _apart(tensor: Tensor) -> Tensor:
    """A copy, each of whose batch elements has room for eight more elements behind it."""
    batch, rows, heads, d_head = tensor.shape
    strides = (rows * heads * d_head + 8, heads * d_head, d_head, 1)
    room = tensor.new_empty(batch * strides[0])
    return room.as_strided(tensor.shape, strides).copy_(tensor)
