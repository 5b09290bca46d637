"""Whether the reference kernels that a user asks for can be had here, before anything is run."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from fa_tune.core.errors import ToolMissing

# Name -> its module and how to come by it.  What is not here comes with torch.
_MODULES = {
    "fa3": (
        "flash_attn_interface",
        "FlashAttention 3",
        "build it from the hopper folder of the flash-attention project",
    ),
    "fa4": ("flash_attn.cute", "FlashAttention 4", "pip install 'flash-attn-4[cu13]>=4.0.0b36'"),
}


def require_references(names: Sequence[str]) -> None:
    """Raise ToolMissing, naming the first reference whose package is not installed.

    Nothing is imported: what cannot be loaded although it is there is told by its attempt.
    """
    for name in names:
        if name in _MODULES:
            module, label, how = _MODULES[name]
            if not is_installed(module):
                raise ToolMissing(f"reference {name}: {label} is not installed; {how}")


def is_installed(module: str) -> bool:
    """Whether a module, or a package within a package, lies on the path.  The outer package is
    not run: FlashAttention 2's, which has the same name, would load torch."""
    outer, _, inner = module.partition(".")
    try:
        spec = importlib.util.find_spec(outer)
    except (ImportError, ValueError):
        return False
    if spec is None or not inner:
        return spec is not None
    return any((Path(folder) / inner).is_dir() for folder in spec.submodule_search_locations or ())
