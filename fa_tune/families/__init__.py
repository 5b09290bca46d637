"""Kernel families and their lookup by name."""

from __future__ import annotations

from typing import Any

from fa_tune.errors import InvalidConfig
from fa_tune.families.base import KernelFamily
from fa_tune.families.sm80 import Sm80Family
from fa_tune.model import Variant

_FAMILIES: dict[str, KernelFamily] = {family.name: family for family in (Sm80Family(),)}


def get(name: str) -> KernelFamily:
    """The family of that name; raises InvalidConfig listing the known ones."""
    try:
        return _FAMILIES[name]
    except KeyError:
        raise InvalidConfig(f"unknown family {name!r}; known: {', '.join(_FAMILIES)}") from None


def family_names() -> tuple[str, ...]:
    """The names of all families."""
    return tuple(_FAMILIES)


def variant_of(family: KernelFamily, config: Any) -> Variant:
    """The variant that a family's config makes."""
    return Variant(family.name, family.short_form(config))
