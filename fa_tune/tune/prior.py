"""What recorded spaces of this GPU say of the configs of a search (`--learn-from`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from fa_tune.core.errors import NoUsableVariant
from fa_tune.search.space_table import find, load, recorded
from fa_tune.search.strategies.base import Space
from fa_tune.search.strategies.transfer import Prior, with_prior


@lru_cache(maxsize=8)
def experiences(places: tuple[Path, ...], gpu: str) -> tuple[Prior, ...]:
    """The recorded workloads in `places` (files or folders) that were taken on that GPU model.

    Raises NoUsableVariant where there is none, and ProfileFormatError.
    """
    tables = [load(path) for path in find(places)]
    known = tuple(
        Prior(one.name, one.space.points, one.times_s)
        for table in tables
        if table.meta.device is not None and table.meta.device.name == gpu
        for one in recorded(table)
    )
    if not known:
        names = ", ".join(map(str, places))
        raise NoUsableVariant(f"no recorded space of an {gpu} in {names} to learn from")
    return known


def informed(spaces: Sequence[Space], places: tuple[Path, ...], gpu: str) -> list[Space]:
    """The spaces with what may be expected of their points; as they are without `places`.

    Raises what `experiences` raises, and NoUsableVariant where no recorded space has the knobs
    of any of them.
    """
    if not places:
        return list(spaces)
    known = experiences(places, gpu)
    found = [with_prior(space, known) for space in spaces]
    if not any(space.expected for space in found):
        names = ", ".join(map(str, places))
        raise NoUsableVariant(f"no recorded space in {names} has the knobs of these configs")
    return found
