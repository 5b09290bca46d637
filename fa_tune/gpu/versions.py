"""Versions of the packages that a measured subject ran with, as the worker has them."""

from __future__ import annotations

import sys

import torch

from fa_tune.core.model import is_reference, reference_name
from fa_tune.core.packages import installed_version

MODULES = {"fa3": "flash_attn_interface", "fa4": "flash_attn.cute", "cupy": "cupy"}
UNKNOWN = "unknown"


def library_versions(subject: str) -> dict[str, str]:
    """The versions behind a subject's times: torch, and `cudnn`, `fa3` or `fa4` of a reference,
    `cupy` of our kernels, which it launches.  What a package does not tell is `unknown`."""
    found = {"torch": str(torch.__version__)}
    if not is_reference(subject):
        return {**found, "cupy": _package("cupy")}
    name = reference_name(subject)
    if name == "cudnn":
        found[name] = _cudnn(torch.backends.cudnn.version())
    elif name in MODULES:
        found[name] = _package(name)
    return found


def _cudnn(number: int | None) -> str:
    """`9.13.0` of cuDNN's 91300; before 9 a minor version had one digit less."""
    if number is None:
        return UNKNOWN
    major, rest = divmod(number, 10_000 if number >= 90_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _package(name: str) -> str:
    return installed_version(name) or str(
        getattr(sys.modules.get(MODULES[name]), "__version__", UNKNOWN)
    )
