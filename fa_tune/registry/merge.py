"""Two registries in, one out: per key the entry with the better evidence.

The order of evidence is total, so merging is commutative, associative and idempotent: teams
can merge in any order, any number of times, and end with the same file.
"""

from __future__ import annotations

from typing import NamedTuple

from fa_tune.registry.schema import Entry, Registry, entry_text, parse_time


class Evidence(NamedTuple):
    """How well an entry is supported; compared field by field, more is better.

    1. `verified`: the chosen variant was verified in that run
    2. `n`: more samples
    3. `narrowness`: minus the interval's width over the median; an unknown interval is last
    4. `recorded_at`: newer, in seconds since 1970
    5. `measured`: measured rather than replayed from a recording
    6. `text`: the entry itself, so that ties end the same way everywhere
    """

    verified: bool
    n: int
    narrowness: float
    recorded_at: float
    measured: bool
    text: str


def evidence(entry: Entry) -> Evidence:
    """The evidence for an entry; only entries with the same key may be compared by it."""
    narrowness = -float("inf")
    if entry.interval_s is not None:
        low, high = entry.interval_s
        narrowness = -(high - low) / entry.median_s
    return Evidence(
        verified=entry.verdict is not None,
        n=entry.n,
        narrowness=narrowness,
        recorded_at=parse_time(entry.provenance.recorded_at).timestamp(),
        measured=entry.source == "measured",
        text=entry_text(entry),
    )


def merge(*registries: Registry) -> Registry:
    """Every key of every registry, each with its best-supported entry.

    Results of different methods have different keys: both stay, neither is preferred here.
    """
    best: dict[tuple[object, ...], Entry] = {}
    for registry in registries:
        for entry in registry.entries:
            rival = best.get(entry.key)
            if rival is None or evidence(entry) > evidence(rival):
                best[entry.key] = entry
    return Registry.of(list(best.values()))
