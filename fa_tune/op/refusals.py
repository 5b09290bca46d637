"""What our kernels do not run, which a program asks once and not in every call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.workload import MAX_SCALE, MIN_SCALE
from fa_tune.op.native import translated
from fa_tune.op.operands import HALF
from fa_tune.op.traits import Traits


def why_not_ours(q: Tensor, k: Tensor, scale: float | None, dropout_p: float = 0.0) -> str:
    """Why our kernels do not compute it, whatever the traits, in a few words; "" if they may."""
    if dropout_p > 0:
        return "dropout"
    if q.dtype not in HALF:
        return f"{q.dtype} is neither fp16 nor bf16"
    if 0 in q.shape or 0 in k.shape:
        return "there is nothing to attend to"
    if scale is not None and not MIN_SCALE <= scale <= MAX_SCALE:
        return f"a scale of {scale:g}"
    return ""


class Asked(NamedTuple):
    """A problem that a kernel may refuse.  `lse`: whether the log-sum-exp is wanted, as it is for
    gradients; `of`: of what kind K and V are, "dense", "packed" or "cache"."""

    q: Tensor
    k: Tensor
    v: Tensor
    traits: Traits
    lse: bool
    of: str = "dense"

    @property
    def kind(self) -> tuple[Any, ...]:
        """All that a kernel is chosen and compiled for but sizes."""
        q, k, v, traits, lse, of = self
        wants_grad = torch.is_grad_enabled() and (
            traits.wants_grad or any(t.requires_grad for t in (q, k, v))
        )
        given = (traits.sink, traits.softcap, traits.alibi_slopes)
        windowed = (traits.window_left, traits.window_right) != (None, None)
        return (
            *(of, q.device, q.dtype, k.dtype, q.shape[-1], v.shape[-1], lse or wants_grad),
            *(traits.causal, windowed, traits.exact, *(trait is not None for trait in given)),
        )


class Refusals:
    """Which kinds of problems were refused.

    A call with a score hook is not remembered: the next text is another kernel, and one that does
    not compile may be mended.
    """

    def __init__(self) -> None:
        self._reasons: dict[tuple[Any, ...], str] = {}

    def reason(self, asked: Asked) -> str:
        """Why no kernel runs it; "" if none has refused."""
        if not self._reasons or asked.traits.score_hook is not None:
            return ""
        return self._reasons.get(asked.kind, "")

    def attempt(
        self,
        run: Callable[[], Any],
        asked: Asked,
        reasons: tuple[type[Exception], ...] = (NoUsableVariant,),
    ) -> tuple[Any, str]:
        """What `run` gives, and "" or why no kernel runs it, where it was refused before without a
        call.  `reasons`: errors that are one; but for NoUsableVariant of this one call."""
        if reason := self.reason(asked):
            return None, reason
        try:
            return run(), ""
        except reasons as error:
            found = translated(error) if isinstance(error, RuntimeError) else error
            if isinstance(found, NoUsableVariant) and asked.traits.score_hook is None:
                self._reasons[asked.kind] = str(found)
            return None, str(found)
