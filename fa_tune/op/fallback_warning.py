"""What is told where torch computes in our place: one warning for each reason."""

from __future__ import annotations

import threading
import warnings

import torch

_lock = threading.Lock()
_told: set[tuple[str, str]] = set()


class FallbackWarning(UserWarning):
    """Attention that fa-tune was asked for and torch computes."""


def tell(who: str, reason: str) -> None:
    """Warn, unless it was said before, or a graph is being compiled, which would end there."""
    if torch.compiler.is_compiling():
        return
    with _lock:
        if (who, reason) in _told:
            return
        _told.add((who, reason))
    warnings.warn(f"{who} is left to torch: {reason}", FallbackWarning, stacklevel=3)
