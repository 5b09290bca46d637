"""What FlashAttention 2's functions are asked for, and what computes it where our kernels do not:
torch's FlashAttention 2, or matrix products."""

from __future__ import annotations

import math
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.tensors import check_shapes
from fa_tune.op import flash2, odd_heads
from fa_tune.op.operands import Lengths, with_whole_rows
from fa_tune.op.refusals import why_not_ours
from fa_tune.op.traits import Traits, check_window

Window = tuple[int, int]
EVERY: Window = (-1, -1)
flash2_forward = torch.ops.aten._flash_attention_forward


class Options(NamedTuple):
    """What FlashAttention 2 computes beside softmax(scale · Q Kᵀ) V; `lse`: the log-sum-exp is
    wanted."""

    causal: bool = False
    scale: float | None = None
    dropout_p: float = 0.0
    window: Window = EVERY
    softcap: float = 0.0
    alibi_slopes: Tensor | None = None
    score_hook: str | None = None
    lse: bool = False

    @property
    def traits(self) -> Traits:
        """The same as `attention` is told, but for dropout.  Aligned where there is something to
        align."""
        left, right = (None if side < 0 else side for side in self.window)
        right = None if self.causal else right
        aligned = self.causal or (left, right) != (None, None) or self.alibi_slopes is not None
        return Traits(
            causal=self.causal,
            bottom_right=aligned,
            scale=self.scale,
            window_left=left,
            window_right=right,
            softcap=self.softcap if self.softcap > 0 else None,
            alibi_slopes=self.alibi_slopes,
            score_hook=self.score_hook,
        )


def check_options(options: Options, batch: int, q: Tensor) -> None:
    """Raise InvalidConfig for what means nothing, and would pass for the usual: NaN, a negative
    share, slopes of other heads."""
    heads = q.shape[-2]
    if not 0 <= options.dropout_p <= 1:  # false for NaN, too
        raise InvalidConfig(f"dropout_p must be from 0 to 1, not {options.dropout_p}")
    if not 0 <= options.softcap < math.inf:
        raise InvalidConfig(f"softcap must be positive, or 0 for none, not {options.softcap}")
    scale = options.scale
    if scale is not None and not -math.inf < scale < math.inf:
        raise InvalidConfig(f"softmax_scale must be a finite number, not {scale}")
    check_window("window_size", options.window, every=-1)
    slopes: object = options.alibi_slopes
    if slopes is None:
        return
    if not isinstance(slopes, Tensor) or not slopes.is_floating_point():
        raise InvalidConfig("alibi_slopes must be a tensor of floating-point numbers")
    if tuple(slopes.shape) not in ((heads,), (batch, heads)):
        raise InvalidConfig(
            f"alibi_slopes must be [{heads}] or [{batch}, {heads}], not {[*slopes.shape]}"
        )
    if slopes.device != q.device:
        raise InvalidConfig(f"alibi_slopes must be on {q.device}, as Q, not {slopes.device}")


def check_integers(name: str, given: object, n_dims: int = 1) -> None:
    """Raise InvalidConfig for what is no tensor of whole numbers with `n_dims` dimensions."""
    if (
        not isinstance(given, Tensor)
        or given.ndim != n_dims
        or given.dtype not in (torch.int32, torch.int64)
    ):
        text = f"{given.dtype} {[*given.shape]}" if isinstance(given, Tensor) else repr(given)[:60]
        wanted = "one dimension" if n_dims == 1 else f"{n_dims} dimensions"
        raise InvalidConfig(f"{name} must be an int32 tensor of {wanted}, not {text}")


def refuse(what: str) -> NoReturn:
    """Raise InvalidConfig for an argument that nothing here computes."""
    raise InvalidConfig(f"{what}: FlashAttention 2 takes this, fa-tune does not")


def check_dimensions(three: tuple[object, ...], layout: str) -> None:
    """Raise InvalidConfig for what are no tensors of as many dimensions as `layout` has, `DENSE` or
    `PACKED`."""
    n_dims = layout.count(",") + 1
    if not all(isinstance(t, Tensor) and t.ndim == n_dims for t in three):
        given = ", ".join(
            str([*t.shape]) if isinstance(t, Tensor) else type(t).__name__ for t in three
        )
        raise InvalidConfig(f"Q, K, V must be tensors {layout}, not {given}")


def check(q: Tensor, k: Tensor, v: Tensor, layout: str) -> None:
    """Raise InvalidConfig for tensors that make no problem, of whatever floating-point type;
    `layout` is `DENSE` or `PACKED`."""
    check_shapes(q, k, v, layout)
    check_heads(q, k)
    check_floating(q, k, v)
    if {k.dtype, v.dtype} != {q.dtype}:
        raise InvalidConfig(f"Q, K, V must be of one type, not {q.dtype}, {k.dtype}, {v.dtype}")
    if {k.device, v.device} != {q.device}:
        raise InvalidConfig(
            f"Q, K, V must be on one device, not {q.device}, {k.device}, {v.device}"
        )


def check_heads(q: Tensor, k: Tensor) -> None:
    """Raise InvalidConfig for heads of queries that those of keys do not divide."""
    heads, kv_heads = q.shape[-2], k.shape[-2]
    if not kv_heads or not heads or heads % kv_heads:
        raise InvalidConfig(f"{kv_heads} kv heads do not divide {heads} heads")


def check_floating(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise InvalidConfig for tensors one of which is not of a floating-point type."""
    if not all(t.is_floating_point() for t in (q, k, v)):
        raise InvalidConfig(
            f"Q, K, V must be of floating-point types, not {q.dtype}, {k.dtype}, {v.dtype}"
        )


def suits_flash2(
    q: Tensor, v: Tensor, options: Options, batch: int, longest: tuple[int, int]
) -> bool:
    """Whether torch's FlashAttention 2 computes it; `longest`: of Q and of K and V."""
    traits = options.traits
    right = 0 if traits.causal else traits.window_right
    return (
        q.is_cuda
        and batch <= flash2.MOST_SEQUENCES
        and flash2.reads(traits.window_left, right, *longest)
        and max(q.shape[-1], v.shape[-1]) <= flash2.MOST_D_HEAD
        and traits.masks_only
        and not why_not_ours(q, v, options.scale)
    )


def by_flash2(
    q: Tensor, k: Tensor, v: Tensor, options: Options, lengths: Lengths | None = None
) -> tuple[Tensor, Tensor]:
    """out and the log-sum-exp by torch's FlashAttention 2, which takes one head dimension, of whole
    eights."""
    traits, d_v = options.traits, v.shape[-1]
    scale = odd_heads.scale(q, traits.scale)
    q, k, v = odd_heads.filled_up(q, k, v, step=8)
    left, right = traits.window_left, 0 if traits.causal else traits.window_right
    windowed = left is not None or (right is not None and not traits.causal)
    if lengths is not None:  # it takes 1 for a promise that each sequence has one query
        lengths = lengths._replace(longest_q=max(2, lengths.longest_q))
    found = flash2_forward(
        *(with_whole_rows(t) for t in (q, k, v)),
        *(lengths or (None, None, q.shape[1], k.shape[1])),
        *(options.dropout_p, traits.causal, False),
        scale=scale,
        window_size_left=left if windowed else None,
        window_size_right=right if windowed else None,
    )
    return found[0][..., :d_v], found[1]
