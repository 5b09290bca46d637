"""The search: candidates → build and verify → measure → decide → other inputs → A/B test →
outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fa_tune import families
from fa_tune.core import input_files
from fa_tune.core.errors import NoUsableVariant, RegistryError, StorageError, ToolMissing
from fa_tune.core.model import Resources
from fa_tune.core.options import DEFAULT_KERNELS, Progress, SearchOptions
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.search.strategies.transfer import Prior
from fa_tune.store.registry import file as registry_file
from fa_tune.tune import ab_test, compare_inputs
from fa_tune.tune.asked import asked_for, of_able_families, of_recorded_configs
from fa_tune.tune.build import PreparedWorkload, prepare
from fa_tune.tune.candidates import (
    Candidates,
    Defaults,
    choose_candidates,
    choose_families,
    recorded_subjects,
    workloads_for,
)
from fa_tune.tune.decide import decide_all
from fa_tune.tune.dispatch import cost_of, run_on_gpus, run_some_on_gpus
from fa_tune.tune.measure import Compared, MeasuredWorkload, measure_workloads
from fa_tune.tune.outputs import (
    Recorder,
    Verdicts,
    check_writable,
    keep_in_registry,
    registry_path,
    save_csv,
)
from fa_tune.tune.profilers import choose_profiler, fall_back
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.search_state import SearchState
from fa_tune.tune.session import Session, open_machine, open_session
from fa_tune.tune.strategy_run import explore
from fa_tune.tune.tie_break import tie_break_for
from fa_tune.tune.unrecorded import recorded_only


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
    state, configs = open_search(options, progress, configs, priors)
    candidates = choose_candidates(configs, options, state.session, state.defaults, state.registry)
    prepared = build_and_verify(state, candidates)
    try:
        measured = measure(state, candidates, prepared)
    except ToolMissing as error:
        state = state_of(options, fall_back(state.session, error), state.defaults, priors)
        measured = measure(state, candidates, prepared)
    decided = decide(state, candidates, measured)
    if options.confirm:
        decided = compare_on_inputs(state, measured, decided)
        decided = confirm(state, decided)
    return write_outputs(state, candidates, decided)


def open_search(
    options: SearchOptions,
    progress: Progress,
    configs: Sequence[Config] | None,
    priors: Sequence[Prior] = (),
) -> tuple[SearchState, Sequence[Config]]:
    """The machine, who measures, and the configs to search: those given, those of the set, or for
    a replay those that are recorded.  What cannot be understood or kept is refused here, before
    anything is built."""
    for workload in options.workloads.workloads():
        input_files.check(options.measure.inputs, workload)
    machine = open_machine(options.machine, progress)
    asked = asked_for(options, machine, progress, configs)
    check_writable(options, registry_path(options.registry))
    wanted = workloads_for(options, asked.configs)
    selection = choose_profiler(
        options.measure, machine, progress, wanted=wanted, configs=asked.configs
    )
    if options.record is not None and not selection.capabilities.measures_anew:
        raise ToolMissing(
            "--record keeps new measurements, and a replay makes none; search on a GPU for it"
        )
    recorded_only(wanted, selection, progress)
    progress.note(selection.source)
    able = choose_families((), machine.limits, selection, workloads=wanted)
    asked = of_able_families(asked, options, able, progress)
    if configs is None and options.kernels == DEFAULT_KERNELS:  # what was named is what is wanted
        asked = of_recorded_configs(asked, selection, wanted, progress)
    session = open_session(machine, selection, options.measure, progress, reuse=options.resume)
    recorded = recorded_subjects(selection)
    defaults = Defaults(machine.limits, able, asked.families, recorded)
    return state_of(options, session, defaults, priors), asked.configs


def state_of(
    options: SearchOptions, session: Session, defaults: Defaults, priors: Sequence[Prior]
) -> SearchState:
    """The state of a search, with what depends on its profiler."""
    folder, selection = options.record, session.selection
    # One config brings a kind of its own.
    like = () if families.is_config(options.kernels) else options.workloads.workloads()
    return SearchState(
        options,
        session,
        defaults,
        tie_break_for(session, like),
        registry_path(options.registry),
        Recorder(folder, options, selection) if folder is not None else None,
        priors,
    )


def build_and_verify(state: SearchState, candidates: Candidates) -> tuple[PreparedWorkload, ...]:
    """Everything compiled and verified; nothing where a strategy chooses what is built, as it
    goes."""
    if state.options.explores:
        return ()
    return tuple(prepare(state.session, candidates.workloads, candidates.configs))


@dataclass(frozen=True)
class Measured:
    """Everything that was measured.  `unusable` are the results of workloads for which nothing
    compiles."""

    workloads: tuple[MeasuredWorkload, ...]
    unusable: tuple[WorkloadResult, ...] = ()


def measure(
    state: SearchState, candidates: Candidates, prepared: Sequence[PreparedWorkload]
) -> Measured:
    """Measure, workload by workload, each on one GPU: all that is prepared, or what a strategy
    proposes."""
    if state.options.explores:
        return _explored(state, candidates)
    return Measured(tuple(_measured(state, prepared)))


def _measured(state: SearchState, prepared: Sequence[PreparedWorkload]) -> list[MeasuredWorkload]:
    def measure_some(
        session: Session, finals: Sequence[PreparedWorkload]
    ) -> list[MeasuredWorkload]:
        defaults = [state.defaults.keys(final.workload) for final in finals]
        wanted = [
            Compared(f.workload, f.artifacts, state.sampling(f.workload, f.artifacts, keep))
            for f, keep in zip(finals, defaults, strict=True)
        ]
        measured = [
            MeasuredWorkload(final, tuple(attempts), keep)
            for final, attempts, keep in zip(
                finals, measure_workloads(session, wanted), defaults, strict=True
            )
        ]
        return [state.record(m) for m in measured]

    return run_some_on_gpus(
        state.session,
        prepared,
        measure_some,
        workload=lambda final: final.workload,
        size=lambda final: len(final.artifacts),
    )


def _explored(state: SearchState, candidates: Candidates) -> Measured:
    def explore_one(session: Session, workload: Workload) -> MeasuredWorkload | WorkloadResult:
        configs = families.worth_trying(candidates.configs, workload)
        always = [families.variant(c).key for c in candidates.always if c in configs]
        first = list(dict.fromkeys([*state.defaults.keys(workload), *always]))
        try:
            return state.record(explore(state, session, workload, configs, first))
        except NoUsableVariant as error:
            return WorkloadResult(workload, (), None, str(error))

    found = run_on_gpus(
        state.session,
        candidates.workloads,
        explore_one,
        workload=lambda workload: workload,
        cost=lambda workload: cost_of(workload, 1),
    )
    return Measured(
        tuple(w for w in found if isinstance(w, MeasuredWorkload)),
        tuple(w for w in found if isinstance(w, WorkloadResult)),
    )


@dataclass(frozen=True)
class Decided:
    """A result for each workload, with what is known of the kernels: `resources` by subject."""

    results: tuple[WorkloadResult, ...]
    verdicts: Verdicts
    resources: Mapping[str, Resources] = field(default_factory=dict)


def decide(state: SearchState, candidates: Candidates, measured: Measured) -> Decided:
    """Decide for each workload, in the order of the candidates'."""
    registry = registry_file.load(state.registry)  # as it was before this search
    selection = state.session.selection
    results = decide_all(measured.workloads, registry, selection, state.tie_break)
    unrecorded = [
        WorkloadResult(w, (), None, f"no recording by {selection.method} holds it")
        for w in candidates.unrecorded
    ]
    found = (*results, *measured.unusable, *unrecorded)
    by_workload = {result.workload: result for result in found}
    prepared = [found.prepared for found in measured.workloads]
    return Decided(
        tuple(by_workload[w] for w in candidates.asked if w in by_workload),
        {p.workload.key: p.verdicts for p in prepared},
        {key: a.resources for p in prepared for key, a in p.artifacts.items()},
    )


def compare_on_inputs(state: SearchState, measured: Measured, decided: Decided) -> Decided:
    """Each choice against the default on all built-in inputs."""
    artifacts = {m.prepared.workload.key: m.prepared.artifacts for m in measured.workloads}
    results = compare_inputs.compare_all(state.session, decided.results, artifacts)
    return dataclasses.replace(decided, results=tuple(results))


def confirm(state: SearchState, decided: Decided) -> Decided:
    """Each choice against the default once more."""
    results = ab_test.confirm_all(state.session, decided.results, decided.verdicts)
    return dataclasses.replace(decided, results=tuple(results))


def write_outputs(state: SearchState, candidates: Candidates, decided: Decided) -> SearchResult:
    """The registry entries, the recording and the CSV that are wanted, in this order: no entry is
    lost with a table.  Raises NoUsableVariant where no workload has a decision."""
    session, options = state.session, state.options
    result = SearchResult(
        results=decided.results,
        rejected=candidates.rejected,
        resources=decided.resources,
        source=session.selection.source,
        method=session.selection.method,
        registry=state.registry,
        device=session.selection.device,
        reused=session.tally.reused,
        measured=session.tally.measured,
        warnings=session.selection.profiler.warnings,
    )
    is_decided = any(r.decision is not None for r in result.results)
    if is_decided:
        result = _kept(state, result, decided.verdicts)
    if state.recorder is not None:
        state.recorder.finish(result)
        session.progress.note(f"recorded in {state.recorder.path}")
    if options.csv is not None:
        save_csv(options.csv, result)
    if not is_decided:
        problems = "; ".join(dict.fromkeys(r.problem for r in result.results))
        raise NoUsableVariant(f"nothing was measured: {problems}")
    return result


def _kept(state: SearchState, result: SearchResult, verdicts: Verdicts) -> SearchResult:
    """The result with its choices in the registry, or with why they are not."""
    session = state.session
    try:
        refused = keep_in_registry(state.registry, result, session.selection, verdicts)
    except (StorageError, RegistryError) as error:  # the results are not lost with it
        return dataclasses.replace(result, registry=None, not_kept=error)
    for sentence in refused:
        session.progress.note(sentence)
    if len(refused) == sum(found.decision is not None for found in result.results):
        return dataclasses.replace(result, registry=None)
    return result
