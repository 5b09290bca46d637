"""Removes what cannot run from a space, and says why for each config."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

from fa_tune.core.arch import ArchLimits
from fa_tune.core.model import Rejected

C = TypeVar("C")


class Pruned(NamedTuple, Generic[C]):
    """A space in two parts, each in the order the configs came in."""

    kept: tuple[C, ...]
    rejected: tuple[tuple[C, Rejected], ...]


def prune(
    configs: Iterable[C],
    limits: ArchLimits,
    constraints: Callable[[C, ArchLimits], Rejected | None],
) -> Pruned[C]:
    """Keep the configs for which `constraints(config, limits)` finds nothing to object to."""
    kept: list[C] = []
    rejected: list[tuple[C, Rejected]] = []
    for config in configs:
        why = constraints(config, limits)
        if why is None:
            kept.append(config)
        else:
            rejected.append((config, why))
    return Pruned(tuple(kept), tuple(rejected))
