"""Head dimensions that no kernel has: columns of zeros, which leave scores and outputs as they are,
bring them to one that there is."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fa_tune.core.errors import NoUsableVariant
from fa_tune.op.fallback_warning import tell
from fa_tune.op.flash2 import MOST_D_HEAD
from fa_tune.op.operands import WHOLE_D_HEAD

known: set[tuple[torch.Size, torch.Size]] = set()  # of Q and V, that a kernel was looked for


def has(q: Tensor, v: Tensor) -> bool:
    """Whether those of Q and V are known to have no kernel."""
    return (q.shape[-1:], v.shape[-1:]) in known


def found(refusal: Exception, q: Tensor, v: Tensor) -> bool:
    """Whether zeros help against a refusal; from now on they are known."""
    both = (*q.shape[-1:], *v.shape[-1:])
    odd = any(d % WHOLE_D_HEAD for d in both) and max(both) <= MOST_D_HEAD
    if not (odd and isinstance(refusal, NoUsableVariant)):
        return False
    known.add((q.shape[-1:], v.shape[-1:]))
    tell("attention", f"a head dimension of {both[0]}, {both[1]} for V", how="adds zeros")
    return True


def scale(q: Tensor, given: float | None) -> float:
    """The scale that is meant, whatever is added to Q."""
    return 1 / math.sqrt(q.shape[-1]) if given is None else given


def filled_up(
    q: Tensor, k: Tensor, v: Tensor, step: int = WHOLE_D_HEAD
) -> tuple[Tensor, Tensor, Tensor]:
    """With columns of zeros up to one multiple of `step`; the same if they have that."""
    wide = max(q.shape[-1], v.shape[-1])
    wide += -wide % step
    pad = torch.nn.functional.pad
    q, k, v = (t if t.shape[-1] == wide else pad(t, (0, wide - t.shape[-1])) for t in (q, k, v))
    return q, k, v
