"""What of a search is in the journal already, and what keeps the rest from being used."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fa_tune import families
from fa_tune.core.options import Progress, SearchOptions
from fa_tune.families.base import Config
from fa_tune.store.fingerprint import Fingerprint, explain_difference
from fa_tune.store.journal import Journal
from fa_tune.tune.plan import plan_search


@dataclass(frozen=True)
class Difference:
    """One field of the fingerprint: what it was when the attempt was made, and what it is."""

    field: str
    was: str
    now: str


@dataclass(frozen=True)
class AttemptStanding:
    """One variant on one workload.  `known`: an attempt in the journal holds.  `differences` to
    the most similar attempt that does not; neither: it was never attempted."""

    subject: str
    workload: str
    known: bool
    differences: tuple[Difference, ...] = ()


@dataclass(frozen=True)
class Staleness:
    """Every variant of a search, on every workload; nothing was measured for it."""

    standings: tuple[AttemptStanding, ...]

    @property
    def stale(self) -> tuple[AttemptStanding, ...]:
        """Variants that were attempted under other conditions."""
        return tuple(s for s in self.standings if s.differences)

    @property
    def sentence(self) -> str:
        """`40 variants: 12 known, 20 stale (18 by driver, 2 by …), 8 never attempted`."""
        known = sum(s.known for s in self.standings)
        fields = Counter(d.field for s in self.stale for d in s.differences)
        text = f"{len(self.standings)} attempts are needed: {known} known, {len(self.stale)} stale"
        if fields:
            text += f" ({', '.join(f'{n} by {name}' for name, n in fields.most_common())})"
        return f"{text}, {len(self.standings) - known - len(self.stale)} never made."


def why_stale(
    options: SearchOptions, progress: Progress, configs: Sequence[Config] | None = None
) -> Staleness:
    """Compare today's conditions with those in the journal; raises what a search raises before
    it measures."""
    plan = plan_search(options, progress, configs)
    session = plan.session
    runs = session.runs if session.capabilities.adaptive else 1  # else it measures in stages
    standings = []
    for workload in plan.candidates.workloads:
        for config in families.worth_trying(plan.candidates.configs, workload):
            subject = families.variant(config).key
            now = session.fingerprint(runs, (families.of(config).name,))
            standings.append(_standing(subject, workload.key, now, session.journal))
    return Staleness(tuple(standings))


def _standing(subject: str, workload: str, now: Fingerprint, journal: Journal) -> AttemptStanding:
    if journal.find(now.digest, subject, workload) is not None:
        return AttemptStanding(subject, workload, True)
    past = [record.fingerprint for record in journal.history(subject, workload)]
    if not past:
        return AttemptStanding(subject, workload, False)
    # Of several, the one that is the least different, and the last of those.
    nearest = min(reversed(past), key=lambda then: len(explain_difference(then, now)))
    was, is_ = dataclasses.asdict(nearest), dataclasses.asdict(now)
    names = explain_difference(nearest, now)
    found = tuple(Difference(n, _text(was[n]), _text(is_[n])) for n in names)
    return AttemptStanding(subject, workload, False, found)


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
