"""From the attempts at all workloads of a search to a decision for each.

All are measured before any is decided: a tie on one workload is settled by how the tied configs
do on the ones like it, in this search or, where it has none, in the registry.
"""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import Variant
from fa_tune.search.decide import Decision, Standing, decide
from fa_tune.search.neighbor_regret import Neighbour, neighbour
from fa_tune.store.registry.schema import Entry, Registry
from fa_tune.tune.measure import MeasuredWorkload
from fa_tune.tune.results import FamilyStanding, WorkloadResult
from fa_tune.tune.session import ProfilerSelection
from fa_tune.tune.tie_break import TieBreak, neighbours_of


def decide_all(
    measured: Sequence[MeasuredWorkload],
    registry: Registry,
    selection: ProfilerSelection,
    tie_break: TieBreak,
) -> list[WorkloadResult]:
    """A result for each workload; `registry` is as it was before the search."""
    device = selection.device
    here = (device.name, device.compute_capability, selection.method)
    known = {
        e.workload: _neighbour_of_entry(e)
        for e in registry.entries
        if (e.gpu.name, e.gpu.compute_capability, e.method) == here
    }
    for found in measured:
        here_now = neighbour([a.measurement for a in found.attempts if a.measurement is not None])
        if here_now is not None:
            known[found.prepared.workload] = here_now
    return [
        decide_one(found, tie_break, neighbours_of(found.prepared.workload, known))
        for found in measured
    ]


def decide_one(
    measured: MeasuredWorkload, tie_break: TieBreak, neighbours: Sequence[Neighbour] = ()
) -> WorkloadResult:
    """Decide among what was measured.  The default is the first of the workload's defaults that
    was: the device's own, or where that does not work what runs in its place."""
    prepared, defaults = measured.prepared, measured.defaults
    measurements = [a.measurement for a in measured.attempts if a.measurement is not None]
    timed = {m.subject for m in measurements}
    default = next((s for s in defaults if s in timed), defaults[0] if defaults else None)
    everything = (*measured.attempts, *prepared.failures, *measured.others)
    artifacts = {s: a for s, a in prepared.artifacts.items() if s in timed}
    ranks, margin = tie_break.of_replay(prepared.workload, measurements) or (
        tie_break.ranks(prepared.workload, artifacts, neighbours),
        tie_break.margin(prepared.workload, default),
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
    return WorkloadResult(
        prepared.workload,
        everything,
        decision,
        problem,
        family_standings(decision, defaults) if decision is not None else (),
        measured.exploration,
        ranks,
        margin=margin,
        inputs=next((m.inputs for m in measurements), str(NORMAL)),
        artifacts=prepared.artifacts,
        verdicts=prepared.verdicts,
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


def _neighbour_of_entry(entry: Entry) -> Neighbour:
    """What an entry says: of the chosen one, the nearest runners-up and the tie set; whoever it
    does not name was slower than those."""
    times = {entry.chosen.key: 1.0}
    times |= {runner.variant.key: runner.ratio.value for runner in entry.runners_up}
    fastest = min(times.values())
    regrets = {key: time / fastest - 1.0 for key, time in times.items()}
    for tied in entry.tie_set:
        regrets.setdefault(tied.key, 0.0)
    return Neighbour(entry.workload.key, regrets, unknown=max(regrets.values()))
