"""How far a config falls behind on workloads like the one to be decided.

Where measurements cannot tell configs apart, the one that is good on nearby workloads as well is
preferred: lengths vary in use, and a config that is best on a single one may owe it to chance or
to a tail.  Regrets are put into coarse buckets, so that noise on those workloads does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_tune.core.model import Measurement, is_reference
from fa_tune.core.stats import MARGIN, TIE, comparable, levels

RECORDED_BUCKET = 0.001  # of recorded regrets, which are the same in every search
NEVER_SEEN = 1_000_000  # buckets: whatever is recorded comes first
BEHIND = 0.75 * MARGIN  # a default's recorded regret that speaks for leaving it
CLEAR = TIE / 2  # a recorded regret that leaves no doubt of a tie


@dataclass(frozen=True)
class Neighbour:
    """One workload nearby.  `regrets` by subject: the share of time above its leader's there,
    0 for the leader; `unknown` is that of a subject it says nothing about."""

    regrets: Mapping[str, float]
    unknown: float = math.inf

    def regret(self, subject: str) -> float:
        """A subject's regret here."""
        return self.regrets.get(subject, self.unknown)


def neighbour(measurements: Sequence[Measurement]) -> Neighbour | None:
    """What measurements of one workload say; None where no candidate was measured."""
    ours = [m for m in measurements if m.samples_s and not is_reference(m.subject)]
    if not ours:
        return None
    compared = comparable(
        {m.subject: m.samples_s for m in ours}, {m.subject: m.relative for m in ours}
    )
    base = max(compared, key=lambda s: (len(compared[s]), s))
    level = levels(compared, base)
    fastest = min(level.values())
    regrets = {s: level[s] / fastest - 1.0 for s in compared}
    return Neighbour(regrets)


def regret_bucket(subject: str, neighbours: Sequence[Neighbour]) -> int:
    """The bucket of the worst regret over the neighbours: 0 below the margin, 1 below twice that,
    2 below four times, and so on; at most 20, for what does not run there."""
    worst = max((neighbour.regret(subject) for neighbour in neighbours), default=0.0)
    if worst < MARGIN:
        return 0
    return 20 if math.isinf(worst) else min(20, 1 + int(math.log2(worst / MARGIN)))


def recorded_regret_bucket(subject: str, recorded: Sequence[Neighbour]) -> int:
    """The worst recorded regret in fine buckets: what is recorded has no noise, being the same for
    every search.  0 for all where nothing is recorded."""
    worst = max((neighbour.regret(subject) for neighbour in recorded), default=0.0)
    return NEVER_SEEN if math.isinf(worst) else min(NEVER_SEEN, round(worst / RECORDED_BUCKET))


def is_near_tie_limit(subject: str, recorded: Neighbour | None) -> bool:
    """Whether, on a workload that is `recorded`, a config was near the limit of a tie or beyond
    it, or is not recorded: each search may say something else of it, so that it must not be asked
    where there is another."""
    return recorded is not None and recorded.regret(subject) >= CLEAR


def margin_over(default: str, recorded: Neighbour | None) -> float:
    """What the default has to be beaten by on a workload that is `recorded`: half the margin where
    it was clearly behind there.  A gain near the full margin is then not near what is asked, and
    neither is one near half of it: what was recorded is only overturned by what differs from it."""
    behind = recorded.regrets.get(default, 0.0) if recorded is not None else 0.0
    return MARGIN / 2 if behind >= BEHIND else MARGIN
