"""The search: candidates → build and verify → measure → decide → other inputs → A/B test →
outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from fa_tune import families
from fa_tune.core.errors import NoUsableVariant, RegistryError, StorageError, ToolMissing
from fa_tune.core.options import Progress, SearchOptions
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.search.strategies.transfer import Prior
from fa_tune.store.registry import file as registry_file
from fa_tune.tune import ab_test, compare_inputs
from fa_tune.tune.build import PreparedWorkload, prepare
from fa_tune.tune.decide import decide_all, decide_one
from fa_tune.tune.dispatch import cost_of, run_on_gpus, run_some_on_gpus
from fa_tune.tune.measure import MeasuredWorkload, measured
from fa_tune.tune.outputs import keep_in_registry, save_csv
from fa_tune.tune.plan import Scouting, SearchPlan, plan_search
from fa_tune.tune.profilers import fall_back
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.session import Session
from fa_tune.tune.strategy_run import explore


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
