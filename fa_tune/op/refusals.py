"""Which problems no kernel runs, so that a program asks once and not in every call."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fa_tune.op.traits import Traits


class Refusals:
    """What was refused, by all that a kernel is chosen and compiled for but sizes.

    A call with a score hook is not remembered: the next text is another kernel, and one that does
    not compile may be mended.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[Any, ...], str] = {}

    def reason(
        self, q: Tensor, k: Tensor, v: Tensor, traits: Traits, *, lse: bool, of: str = "dense"
    ) -> str:
        """Why no kernel runs it; "" if none has refused.  `lse`: whether the log-sum-exp is wanted,
        as it is for gradients; `of`: of what kind K and V are, "dense", "packed" or "cache"."""
        if not self._reasons or traits.score_hook is not None:
            return ""
        return self._reasons.get(_kind(q, k, v, traits, lse, of), "")

    def remember(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        traits: Traits,
        reason: str,
        *,
        lse: bool,
        of: str = "dense",
    ) -> None:
        """Note that it was refused; the arguments are those of `reason`."""
        if traits.score_hook is None:
            self._reasons[_kind(q, k, v, traits, lse, of)] = reason


def _kind(q: Tensor, k: Tensor, v: Tensor, traits: Traits, lse: bool, of: str) -> tuple[Any, ...]:
    wants_grad = torch.is_grad_enabled() and (
        traits.wants_grad or any(t.requires_grad for t in (q, k, v))
    )
    given = (traits.sink, traits.softcap, traits.alibi_slopes)
    windowed = (traits.window_left, traits.window_right) != (None, None)
    return (
        *(of, q.device, q.dtype, k.dtype, q.shape[-1], v.shape[-1], lse or wants_grad),
        *(traits.causal, windowed, *(trait is not None for trait in given)),
    )
