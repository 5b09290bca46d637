"""What is told where torch computes in our place, or more is computed than was asked for: one
warning for each reason."""

from __future__ import annotations

import threading
import warnings

import torch

_lock = threading.Lock()
_told: set[tuple[str, str]] = set()
_last = threading.local()


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
    _last.reason = reason
    with _lock:
        if (who, reason) in _told:
            return
        _told.add((who, reason))
    warnings.warn(f"{who} {how}: {reason}", FallbackWarning, stacklevel=3)


def last_reason() -> str:
    """What was told last in this thread since this was asked, though it may have been told before;
    "" for nothing."""
    reason: str = vars(_last).pop("reason", "")
    return reason
