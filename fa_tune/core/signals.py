"""Signals that end processes, in words."""

from __future__ import annotations

import signal


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11; a number that has no name is said to be one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
