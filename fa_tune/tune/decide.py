"""From the attempts at all workloads of a search to a decision for each.

All are measured before any is decided: a tie on one workload is settled by how the tied configs
do on the ones like it, in this search or, where it has none, in the registry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Artifact, Attempt, Variant, Verdict, Workload
from fa_tune.search.decide import Decision, Standing, decide
from fa_tune.search.neighbor_regret import Neighbour, neighbour
from fa_tune.tune.profilers import Measured
from fa_tune.tune.results import Exploration, FamilyStanding, WorkloadResult
from fa_tune.tune.tie_break import Preferences, neighbours_of

if TYPE_CHECKING:
    from fa_tune.store.registry.schema import Entry, Registry


@dataclass(frozen=True)
class Candidates:
    """Compiled (and, on a GPU, verified) variants of one workload; `failures` are attempts
    that ended before measuring."""

    workload: Workload
    artifacts: Mapping[str, Artifact]  # by variant key
    failures: tuple[Attempt, ...]
    verdicts: Mapping[str, Verdict]  # by variant key


@dataclass(frozen=True)
class Taken:
    """One workload with everything measured on it: `attempts` to decide by, `others` that ended
    before the final; `defaults` are subjects, the first one measured is the default."""

    candidates: Candidates
    attempts: tuple[Attempt, ...]
    defaults: tuple[str, ...]
    others: tuple[Attempt, ...] = ()
    exploration: Exploration | None = None


def conclude_all(
    taken: Sequence[Taken], registry: Registry, measured: Measured, preferred: Preferences
) -> list[WorkloadResult]:
    """A result for each workload; `registry` is as it was before the search."""
    found = {one.candidates.workload: _neighbour(one) for one in taken}
    kept = {
        e.workload: _kept(e)
        for e in registry.entries
        if (e.gpu.name, e.gpu.compute_capability, e.method)
        == (measured.device.name, measured.device.compute_capability, measured.profiler.method)
    }
    known = {**kept, **{w: n for w, n in found.items() if n is not None}}
    return [
        conclude(
            one.candidates,
            one.attempts,
            one.defaults,
            neighbours_of(one.candidates.workload, known),
            preferred=preferred,
            others=one.others,
            exploration=one.exploration,
        )
        for one in taken
    ]


def conclude(
    one: Candidates,
    attempts: Sequence[Attempt],
    defaults: Sequence[str],
    neighbours: Sequence[Neighbour] = (),
    *,
    preferred: Preferences | None = None,
    others: Sequence[Attempt] = (),
    exploration: Exploration | None = None,
) -> WorkloadResult:
    """Decide among what was measured.  The default is the first of `defaults` that was: the
    device's own, or where that does not work what runs in its place."""
    measurements = [a.measurement for a in attempts if a.measurement is not None]
    taken = {m.subject for m in measurements}
    default = next((s for s in defaults if s in taken), defaults[0] if defaults else None)
    everything = (*attempts, *one.failures, *others)
    preferred = preferred or Preferences()
    known = {subject: one.artifacts[subject] for subject in one.artifacts if subject in taken}
    ranks, margin = preferred.of_replay(one.workload, measurements) or (
        preferred.ranks(one.workload, known, neighbours),
        preferred.margin(one.workload, default),
    )
    decision: Decision | None = None
    problem = ""
    try:
        decision = decide(measurements, default, margin=margin, tie_break=ranks.__getitem__)
    except NoUsableVariant as error:
        reasons = dict.fromkeys(a.reason for a in everything if a.reason)
        problem = next(iter(reasons), str(error))
    except ValueError as error:
        problem = str(error)
    standings = family_standings(decision, defaults) if decision is not None else ()
    return WorkloadResult(
        one.workload, everything, decision, problem, standings, exploration, ranks, margin=margin
    )


def family_standings(decision: Decision, defaults: Sequence[str]) -> tuple[FamilyStanding, ...]:
    """The best config of each family that was measured, the fastest family first."""
    best: dict[str, Standing] = {}
    by_subject = {standing.subject: standing for standing in decision.standings}
    for standing in decision.standings:
        best.setdefault(Variant.from_key(standing.subject).family, standing)
    own = {Variant.from_key(s).family: by_subject[s] for s in defaults if s in by_subject}
    return tuple(
        FamilyStanding(
            family=family,
            best=standing.subject,
            median_s=standing.median_s,
            default=own[family].subject if family in own else None,
            ratio_to_default=standing.median_s / own[family].median_s if family in own else None,
        )
        for family, standing in best.items()
    )


def _neighbour(one: Taken) -> Neighbour | None:
    """What a workload of this search says to others."""
    return neighbour([a.measurement for a in one.attempts if a.measurement is not None])


def _kept(entry: Entry) -> Neighbour:
    """What an entry says: of the chosen one, the nearest runners-up and the tie set; whoever it
    does not name was slower than those."""
    times = {entry.chosen.key: 1.0}
    times |= {one.variant.key: one.ratio.value for one in entry.runners_up}
    fastest = min(times.values())
    regrets = {key: time / fastest - 1.0 for key, time in times.items()}
    for tied in entry.tie_set:
        regrets.setdefault(tied.key, 0.0)
    return Neighbour(entry.workload.key, regrets, unknown=max(regrets.values()))
