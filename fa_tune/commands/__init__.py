"""The commands of `fa-tune`, one module each; every module's `command` is what it adds."""

from __future__ import annotations
