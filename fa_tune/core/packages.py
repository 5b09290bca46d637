"""Versions of installed packages, which are not imported for it."""

from __future__ import annotations

import importlib.metadata

# Names under which a package may be installed, the usual one first.
DISTRIBUTIONS = {
    "torch": ("torch",),
    "cudnn": ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    "fa3": ("flash_attn_3", "flash_attn_interface"),
    "fa4": ("flash-attn-4",),
    "triton": ("triton", "pytorch-triton"),
    "cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
}
# What each reference's kernels come from.
_OF_REFERENCE = {
    "fa2": ("torch",),
    "cudnn": ("torch", "cudnn"),
    "fa3": ("torch", "fa3"),
    "fa4": ("torch", "fa4"),
    "flex": ("torch", "triton"),
}


def installed_version(name: str) -> str | None:
    """The version of a package of DISTRIBUTIONS; None where no package manager knows it."""
    for distribution in DISTRIBUTIONS[name]:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def reference_versions(reference: str) -> str:
    """What a reference's kernels come from here: `torch 2.11.0, cudnn 9.13.0.50` for `cudnn`.
    What is not known is left out."""
    versions = {name: installed_version(name) for name in _OF_REFERENCE.get(reference, ())}
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version)
