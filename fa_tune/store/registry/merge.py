"""Two registries in, one out: per key the entry with the better evidence.

The order of evidence is total, so merging is commutative, associative and idempotent: teams
can merge in any order, any number of times, and end with the same file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from fa_tune.core.model import parse_time
from fa_tune.store.registry.combine import of_same_sources
from fa_tune.store.registry.schema import Entry, Registry, entry_text


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
    low, high = entry.interval_s or (0.0, math.inf)
    return Evidence(
        verified=entry.verdict is not None,
        n=entry.n,
        narrowness=-(high - low) / entry.median_s,
        recorded_at=parse_time(entry.provenance.recorded_at).timestamp(),
        measured=entry.source == "measured",
        text=entry_text(entry),
    )


def merge_registries(*registries: Registry) -> Registry:
    """Every key of every registry, each with its best-supported entry.

    Results of different methods have different keys: both stay, neither is preferred here.
    """
    return Registry.of(list({entry.key: entry for entry in _by_evidence(registries)}.values()))


def _by_evidence(registries: Iterable[Registry]) -> list[Entry]:
    return sorted((entry for r in registries for entry in r.entries), key=evidence)


@dataclass(frozen=True)
class EntryConflict:
    """Two entries for one key that choose different variants; `kept` has more evidence.

    `why` says what decided, in words; `differences` are conditions under which they were
    measured that are not the same, by their names in the provenance.
    """

    kept: Entry
    dropped: Entry
    why: str
    differences: tuple[str, ...]


def conflicts(*registries: Registry) -> tuple[EntryConflict, ...]:
    """Every entry that `merge` drops although it names another variant than what it keeps, each
    such variant once, with the best of its evidence; in the order of the keys."""
    kept = {entry.key: entry for entry in merge_registries(*registries).entries}
    others = {(entry.key, entry.chosen): entry for entry in _by_evidence(registries)}
    others = {about: e for about, e in others.items() if e.chosen != kept[e.key].chosen}
    found = (_conflict(kept[entry.key], entry) for entry in others.values())
    return tuple(sorted(found, key=lambda c: (c.kept.key, c.dropped.chosen.key)))


CONDITIONS = ("driver", "cuda", "nvrtc", "profiler_version", "clock_policy", "cache_policy")


def _conflict(kept: Entry, dropped: Entry) -> EntryConflict:
    a, b = kept.provenance, dropped.provenance
    names = [name for name in CONDITIONS if getattr(a, name) != getattr(b, name)]
    if not of_same_sources(kept, dropped):
        names.append("kernel sources")
    return EntryConflict(kept, dropped, _why(kept, dropped), tuple(names))


def _why(kept: Entry, dropped: Entry) -> str:
    """The first field of the evidence in which they differ, in words."""
    pairs = zip(Evidence._fields, evidence(kept), evidence(dropped), strict=True)
    first = next(name for name, better, worse in pairs if better != worse)
    words = {
        "verified": "it was verified",
        "n": f"{kept.n} samples against {dropped.n}",
        "narrowness": "its interval is narrower",
        "recorded_at": "it is newer",
        "measured": "it was measured here and the other replayed",
        "text": "the two are equally well supported",
    }
    return words[first]
