"""The search: candidates → build and verify → measure → decide → other inputs → A/B test →
outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fa_tune import families
from fa_tune.core.errors import NoUsableVariant, RegistryError, StorageError, ToolMissing
from fa_tune.core.inputs import NORMAL
from fa_tune.core.model import Variant
from fa_tune.core.options import Progress, SearchOptions
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.search.decide import Decision, Standing
from fa_tune.search.decide import decide as choose
from fa_tune.search.neighbor_regret import Neighbour, neighbour
from fa_tune.search.strategies.transfer import Prior
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Entry, Registry
from fa_tune.tune import ab_test, compare_inputs
from fa_tune.tune.build import PreparedWorkload, prepare
from fa_tune.tune.dispatch import cost_of, run_on_gpus, run_some_on_gpus
from fa_tune.tune.measure import MeasuredWorkload, measured
from fa_tune.tune.outputs import keep_in_registry, save_csv
from fa_tune.tune.plan import Scouting, SearchPlan, plan_search
from fa_tune.tune.profilers import fall_back
from fa_tune.tune.results import FamilyStanding, SearchResult, WorkloadResult
from fa_tune.tune.session import ProfilerSelection, Session
from fa_tune.tune.strategy_run import explore
from fa_tune.tune.tie_break import TieBreak, neighbours_of


def search(
    options: SearchOptions,
    progress: Progress,
    configs: Sequence[Config] | None = None,
    priors: Sequence[Prior] = (),
) -> SearchResult:
    """Find the fastest config per workload and keep it in the registry; among `configs`, or
    those of the set that the options name.  A strategy that can begins with what `priors` say.

    Raises InvalidConfig, ToolMissing, StorageError, NoUsableVariant, RegistryError and
    JournalError; whatever was measured before is in the journal.
    """
    plan = plan_search(options, progress, configs, priors)
    prepared = build_and_verify(plan)
    try:
        measured = measure(plan, prepared)
    except ToolMissing as error:
        plan = plan.with_session(fall_back(plan.session, error))
        measured = measure(plan, prepared)
    decided = decide(plan, measured)
    if plan.confirm:
        decided = compare_inputs.compare_all(plan.session, decided)
        decided = ab_test.confirm_all(plan.session, decided)
        if plan.libraries:
            decided = ab_test.serve_all(plan.session, decided)
    return write_outputs(plan, decided)


def build_and_verify(plan: SearchPlan) -> tuple[PreparedWorkload, ...]:
    """Everything compiled and verified; nothing where a strategy chooses what is built, as it
    goes."""
    if plan.scouting is not None:
        return ()
    return tuple(prepare(plan.session, plan.candidates.workloads, plan.candidates.configs))


def measure(
    plan: SearchPlan, prepared: Sequence[PreparedWorkload]
) -> Sequence[MeasuredWorkload | WorkloadResult]:
    """Measure, workload by workload, each on one GPU: all that is prepared, or what a strategy
    proposes.  A workload for which nothing compiles has its result."""
    if plan.scouting is not None:
        return _explored(plan, plan.scouting)
    return _measured(plan, prepared)


def _measured(plan: SearchPlan, prepared: Sequence[PreparedWorkload]) -> list[MeasuredWorkload]:
    def measure_some(
        session: Session, finals: Sequence[PreparedWorkload]
    ) -> list[MeasuredWorkload]:
        defaults = [plan.defaults.keys(final.workload) for final in finals]
        requests = [
            plan.request(session, final.workload, final.artifacts, keep)
            for final, keep in zip(finals, defaults, strict=True)
        ]
        return [
            _record(plan, MeasuredWorkload(final, tuple(attempts), keep))
            for final, attempts, keep in zip(
                finals, measured(session, requests), defaults, strict=True
            )
        ]

    return run_some_on_gpus(
        plan.session,
        prepared,
        measure_some,
        workload=lambda final: final.workload,
        size=lambda final: len(final.artifacts),
    )


def _record(plan: SearchPlan, measured: MeasuredWorkload) -> MeasuredWorkload:
    """One workload is measured: if that is recorded, it is from now on."""
    if plan.recorder is not None:
        found = decide_one(measured, plan.tie_break)
        plan.recorder.add(found)
    return measured


def _explored(plan: SearchPlan, scouting: Scouting) -> list[MeasuredWorkload | WorkloadResult]:
    def explore_one(session: Session, workload: Workload) -> MeasuredWorkload | WorkloadResult:
        configs = families.worth_trying(plan.candidates.configs, workload)
        always = [families.variant(c).key for c in plan.candidates.always if c in configs]
        first = list(dict.fromkeys([*plan.defaults.keys(workload), *always]))
        try:
            return _record(plan, explore(plan, scouting, session, workload, configs, first))
        except NoUsableVariant as error:
            return WorkloadResult(workload, (), None, str(error))

    return run_on_gpus(
        plan.session,
        plan.candidates.workloads,
        explore_one,
        workload=lambda workload: workload,
        cost=lambda workload: cost_of(workload, 1),
    )


def decide(
    plan: SearchPlan, measured: Sequence[MeasuredWorkload | WorkloadResult]
) -> list[WorkloadResult]:
    """Decide for each workload, in the order of the candidates'."""
    registry = registry_file.load(plan.registry)  # as it was before this search
    selection = plan.session.selection
    final = [w for w in measured if isinstance(w, MeasuredWorkload)]
    unrecorded = [
        WorkloadResult(w, (), None, f"no recording by {selection.method} holds it")
        for w in plan.candidates.unrecorded
    ]
    found = (
        *decide_all(final, registry, selection, plan.tie_break),
        *(w for w in measured if isinstance(w, WorkloadResult)),
        *unrecorded,
    )
    by_workload = {result.workload: result for result in found}
    return [by_workload[w] for w in plan.candidates.requested if w in by_workload]


def decide_all(
    measured: Sequence[MeasuredWorkload],
    registry: Registry,
    selection: ProfilerSelection,
    tie_break: TieBreak,
) -> list[WorkloadResult]:
    """A result for each workload; `registry` is as it was before the search.  All are measured
    before any is decided: a tie on one workload is settled by how the tied configs do on the ones
    like it, in this search or, where it has none, in the registry."""
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
        decision = choose(measurements, default, margin=margin, tie_break=ranks.__getitem__)
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
    return Neighbour(regrets, unknown=max(regrets.values()))


def write_outputs(plan: SearchPlan, results: Sequence[WorkloadResult]) -> SearchResult:
    """The registry entries, the recording and the CSV that are wanted, in this order: no entry is
    lost with a table.  Raises NoUsableVariant where no workload has a decision."""
    session = plan.session
    result = SearchResult(
        results=tuple(results),
        rejected=plan.candidates.rejected,
        resources={s: a.resources for r in results for s, a in r.artifacts.items()},
        source=session.selection.source,
        method=session.selection.method,
        registry=plan.registry,
        device=session.selection.device,
        reused=session.tally.reused,
        measured=session.tally.measured,
        warnings=session.selection.profiler.warnings,
    )
    is_decided = any(r.decision is not None for r in result.results)
    if is_decided:
        result = _kept(plan, result)
    if plan.recorder is not None:
        plan.recorder.finish(results)
        session.progress.note(f"recorded in {plan.recorder.path}")
    if plan.csv is not None:
        save_csv(plan.csv, result)
    if not is_decided:
        problems = "; ".join(dict.fromkeys(r.problem for r in result.results))
        raise NoUsableVariant(f"nothing was measured: {problems}")
    return result


def _kept(plan: SearchPlan, result: SearchResult) -> SearchResult:
    """The result with its choices in the registry, or with why they are not."""
    session = plan.session
    try:
        refused = keep_in_registry(plan.registry, result, session.selection)
    except (StorageError, RegistryError) as error:  # the results are not lost with it
        return dataclasses.replace(result, registry=None, not_kept=error)
    for sentence in refused:
        session.progress.note(sentence)
    if len(refused) == sum(found.decision is not None for found in result.results):
        return dataclasses.replace(result, registry=None)
    return result
