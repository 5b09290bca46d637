"""What is told where torch computes in our place, or more is computed than was asked for: one
warning for each reason."""

from __future__ import annotations

import threading
import warnings

import torch

_lock = threading.Lock()
_told: set[tuple[str, str]] = set()


class FallbackWarning(UserWarning):
    """Attention that torch computes in our place, or that takes longer than it needs."""


def tell_of_copies() -> None:
    """Warn of tensors that are copied since no kernel reads their rows."""
    tell("attention", "rows that do not begin at multiples of 16 bytes", how="copies tensors")


def tell(who: str, reason: str, how: str = "is left to torch") -> None:
    """Warn of what is computed otherwise, and how, unless it was said before, or a graph is being
    compiled, which would end there."""
    if torch.compiler.is_compiling():
        return
    with _lock:
        if (who, reason) in _told:
            return
        _told.add((who, reason))
    warnings.warn(f"{who} {how}: {reason}", FallbackWarning, stacklevel=3)
