"""The search: expand → reject → compile → verify → measure → decide → registry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fa_tune import families
from fa_tune.build.compile import BuildRequest, BuildResult
from fa_tune.core.errors import NoUsableVariant, ToolMissing
from fa_tune.core.model import Artifact, Attempt, Outcome, Verdict, Workload
from fa_tune.core.options import DEFAULT_KERNELS, Progress, SearchOptions
from fa_tune.families.base import Config
from fa_tune.fleet.calibration import choose_pair
from fa_tune.ops import flops
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.store.journal import Fingerprint, Journal
from fa_tune.tune.ab_test import confirm_all
from fa_tune.tune.candidates import (
    Defaults,
    choose_families,
    incumbents,
    recorded_configs,
)
from fa_tune.tune.compile_timeouts import known_timeout, remember_timeouts
from fa_tune.tune.decide import Candidates, Taken, conclude_all
from fa_tune.tune.dispatch import Spot, on_boards
from fa_tune.tune.measure import (
    Tally,
    fingerprint,
    measure_workload,
    search_id,
)
from fa_tune.tune.outputs import (
    Recorder,
    check_writable,
    keep_in_registry,
    registry_path,
    save_csv,
)
from fa_tune.tune.profilers import Measured, choose_profiler, fall_back
from fa_tune.tune.results import SearchResult, WorkloadResult
from fa_tune.tune.screening import run_heats
from fa_tune.tune.session import (
    Context,
    build_all,
    build_request,
    choose_configs,
    open_context,
    prune_configs,
    workloads_for,
)
from fa_tune.tune.strategy_run import explore
from fa_tune.tune.tie_break import Preferences, preferences
from fa_tune.tune.verify import calibrate, verdict_key, verify_all


def search(
    options: SearchOptions, progress: Progress, configs: Sequence[Config] | None = None
) -> SearchResult:
    """Find the fastest config per workload and keep it in the registry; among `configs`, or
    those of the set that the options name.

    Raises InvalidConfig, ToolMissing, StorageError, NoUsableVariant, RegistryError and
    JournalError; whatever was measured before is in the journal.
    """
    grid = options.workloads
    wanted = grid.workloads()  # what cannot be understood is refused before anything else
    context = open_context(options.machine, progress)
    # Whatever is recorded or runs here, a set that nobody knows is told first.
    chosen = choose_families(options.families, context.limits)
    choose = partial(choose_configs, options.kernels, grid.dtypes, grid.d_heads)
    if configs is None:
        configs = choose(chosen, named=bool(options.families))
    registry = registry_path(options.registry)
    check_writable(options, registry)
    measured = choose_profiler(options.measure, context, progress, wanted=wanted, configs=configs)
    progress.note(measured.whose)
    able = choose_families((), context.limits, measured)
    if families.is_config(options.kernels):
        chosen = (families.of(configs[0]),)
    elif not options.families and able != chosen:
        out = ", ".join(f.name for f in chosen if f not in able)
        progress.note(f"no recording holds kernels of {out}: left out")
        chosen, configs = able, [c for c in configs if families.of(c) in able] or choose(able)
    if options.kernels == DEFAULT_KERNELS:  # a set that was named is what was wanted
        held = recorded_configs(measured, chosen, wanted)
        if held and not set(held) & set(configs):
            progress.note(
                f"no recording holds the set {DEFAULT_KERNELS!r}: choosing among the "
                f"{len(held)} configs that are recorded"
            )
            configs = held
    journal = context.journal()
    for warning in journal.warnings:
        progress.warn(warning)

    kept, rejected = prune_configs(configs, context)
    if not kept:
        first = f": {rejected[0][1].reason}" if rejected else ""
        raise NoUsableVariant(
            f"none of the {len(configs)} configs can run on {context.arch}{first}"
        )
    workloads = workloads_for(options, kept)
    defaults = Defaults(context.limits, able, chosen)
    others = [*defaults.for_configs(kept), *incumbents(registry, measured, workloads)]
    others, _ = prune_configs(list(dict.fromkeys(others)), context)
    kept = list(dict.fromkeys([*kept, *others]))
    candidates: list[Candidates] = []
    if not options.explores:
        candidates = prepare(workloads, kept, options, context, measured, progress)

    def measure_all_by(how: Measured) -> tuple[Work, list[Taken], list[WorkloadResult]]:
        work = Work(
            options,
            Spot(how, context, progress, Tally()),
            journal,
            defaults,
            preferences(how, context, progress),
            Recorder(options.record, options, how) if options.record is not None else None,
        )
        if options.explores:
            return work, *explore_all(workloads, kept, others, work)
        return work, measure_all(candidates, work), []

    try:
        work, taken, without = measure_all_by(measured)
    except ToolMissing as error:
        measured = fall_back(options.measure, measured, context, progress, error)
        work, taken, without = measure_all_by(measured)
    tally, recorder = work.here.tally, work.recorder
    if context.pool is not None and tally.measured:
        calibrate(context.pool, options.measure, progress)
    from fa_tune.store.registry import file as store

    results = [*conclude_all(taken, store.load(registry), measured, work.preferred), *without]
    results.sort(key=lambda one: workloads.index(one.workload))
    candidates = [one.candidates for one in taken]
    resources = {key: a.resources for one in candidates for key, a in one.artifacts.items()}
    verdicts = {one.workload.key: one.verdicts for one in candidates}
    results = confirm_all(
        results,
        verdicts,
        options=options,
        measured=measured,
        context=context,
        journal=journal,
        progress=progress,
    )
    result = SearchResult(
        results=tuple(results),
        rejected=rejected,
        resources=resources,
        whose=measured.whose,
        method=measured.profiler.method,
        registry=registry,
        device=measured.device,
        reused=tally.reused,
        measured=tally.measured,
        warnings=tuple(getattr(getattr(measured.profiler, "notes", None), "warnings", ())),
        disagreement=context.pool.disagreement if context.pool is not None else None,
    )
    if options.csv is not None:
        save_csv(options.csv, result)
    if recorder is not None:
        recorder.finish(result)
        progress.note(f"recorded in {recorder.path}")
    if all(r.decision is None for r in results):
        problems = "; ".join(dict.fromkeys(r.problem for r in results))
        raise NoUsableVariant(f"nothing was measured: {problems}")
    for refused in keep_in_registry(registry, result, measured, verdicts):
        progress.note(refused)
    return result


@dataclass(frozen=True)
class Work:
    """What measuring every workload of a search takes; `here` is where the search runs."""

    options: SearchOptions
    here: Spot
    journal: Journal
    defaults: Defaults
    preferred: Preferences
    recorder: Recorder | None

    def take(self, one: Taken) -> Taken:
        """One workload is measured: if that is recorded, it is from now on."""
        if self.recorder is not None:
            self.recorder.add(
                [*one.attempts, *one.candidates.failures, *one.others], one.candidates.artifacts
            )
        return one


def measure_all(candidates: Sequence[Candidates], work: Work) -> list[Taken]:
    """Measure, workload by workload; each on one board, where there are several."""
    options, defaults, preferred = work.options, work.defaults, work.preferred

    def settle(spot: Spot, one: Candidates) -> Taken:
        standard = defaults.keys(one.workload)
        attempts = measure_workload(
            one.workload,
            one.artifacts,
            options=options.measure,
            measured=spot.measured,
            context=spot.context,
            journal=work.journal,
            reuse=options.resume,
            keep=standard,
            progress=spot.progress,
            tally=spot.tally,
            search=search_id(options, defaults.chosen),
            order=preferred.order(one.workload, one.artifacts),
            margin=preferred.margin(one.workload, next(iter(standard), None)),
        )
        return work.take(heats.with_losers(Taken(one, tuple(attempts), standard)))

    heats = run_heats(candidates, defaults.keys, options, work.here, work.journal)
    return on_boards(
        heats.candidates,
        settle,
        work.here,
        work.journal,
        workload=lambda one: one.workload,
        cost=lambda one: flops.matmul_flop(one.workload) * len(one.artifacts),
    )


def explore_all(
    workloads: Sequence[Workload],
    configs: Sequence[Config],
    others: Sequence[Config],
    work: Work,
) -> tuple[list[Taken], list[WorkloadResult]]:
    """Let the strategy choose what is measured, workload by workload; `others` are the defaults
    and what the registry holds, which are always measured.  The results are those of workloads
    for which nothing compiles."""
    options, defaults = work.options, work.defaults
    measured, context, progress = work.here.measured, work.here.context, work.here.progress
    if context.pool is not None:  # the calibration pair is of the defaults
        prepare(workloads, others, options, context, measured, progress)

    def settle(spot: Spot, workload: Workload) -> Taken | WorkloadResult:
        fitting = [c for c in configs if (c.dtype, c.d_head) == (workload.dtype, workload.d_head)]
        standard = defaults.keys(workload)
        known = [families.variant(c).key for c in others if c in fitting]

        def prepared(some: Sequence[Config], verify: bool) -> Candidates:
            (found,) = prepare(
                [workload], some, options, spot.context, measured, spot.progress, verify=verify
            )
            return found

        try:
            explored = explore(
                workload,
                fitting,
                list(dict.fromkeys([*standard, *known])),
                options=options,
                measured=spot.measured,
                context=spot.context,
                journal=work.journal,
                progress=spot.progress,
                tally=spot.tally,
                search=search_id(options, defaults.chosen),
                prepare=prepared,
                preferred=work.preferred,
            )
        except NoUsableVariant as error:
            return WorkloadResult(workload, (), None, str(error))
        return work.take(
            Taken(
                explored.candidates,
                explored.final,
                standard,
                explored.others,
                explored.exploration,
            )
        )

    settled = on_boards(
        workloads,
        settle,
        work.here,
        work.journal,
        workload=lambda one: one,
        cost=flops.matmul_flop,
    )
    taken = [one for one in settled if isinstance(one, Taken)]
    return taken, [one for one in settled if isinstance(one, WorkloadResult)]


def prepare(
    workloads: Sequence[Workload],
    configs: Sequence[Config],
    options: SearchOptions,
    context: Context,
    measured: Measured,
    progress: Progress,
    *,
    verify: bool = True,
) -> list[Candidates]:
    """Compile every config for every workload's traits, and `verify` what compiled."""
    wanted: dict[tuple[str, str], BuildRequest] = {}
    per_workload: list[tuple[Workload, list[tuple[str, str]]]] = []
    for workload in workloads:
        keys = []
        for config in configs:
            if (config.dtype, config.d_head) != (workload.dtype, workload.d_head):
                continue
            request = build_request(config, families.of(config).traits(config, workload), context)
            key = (request.variant.key, request.traits)
            wanted.setdefault(key, request)
            keys.append(key)
        per_workload.append((workload, keys))
    journal = context.journal()
    built: dict[tuple[str, str], BuildResult] = {}
    if options.resume:
        limit_s = context.options.compile_timeout_s
        seen: dict[str, Fingerprint] = {}
        known = {key: known_timeout(r, journal, limit_s, seen) for key, r in wanted.items()}
        built = {key: result for key, result in known.items() if result is not None}
    rest = {key: request for key, request in wanted.items() if key not in built}
    verdicts: dict[str, Verdict] = {}
    crashed: dict[str, Attempt] = {}
    asked: set[str] = set()

    def verify_done(results: Sequence[BuildResult]) -> None:
        """Verify what compiled, but for what has been."""
        found = [r.artifact for r in results if r.artifact is not None]
        if context.pool is not None and context.pool.pair is None:
            by_key = {(a.variant.key, a.traits): a for a in found}
            context.pool.pair = choose_pair(workloads, by_key, context.limits)
        left = [a for a in found if verdict_key(a) not in asked]
        asked.update(map(verdict_key, left))
        if not verify or isinstance(measured.profiler, ReplayProfiler):
            return
        right, ended = verify_all(
            left,
            fingerprint=lambda family: fingerprint(measured, context, 0, (family,)),
            journal=journal,
            reuse=options.resume,
            device=context.options.device,
            seed=options.measure.seed,
            item_timeout_s=options.measure.item_timeout_s,
            progress=progress,
            context=context,
        )
        verdicts.update(right)
        crashed.update(ended)

    # What takes minutes to compile is waited for while the others are verified.
    fresh = build_all(list(rest.values()), context, progress, verify_done)
    remember_timeouts(fresh, journal)
    built |= dict(zip(rest, fresh, strict=True))
    verify_done(list(built.values()))
    return [
        _candidates(workload, [(key, built[key]) for key in keys], verdicts, crashed)
        for workload, keys in per_workload
    ]


def _candidates(
    workload: Workload,
    built: Sequence[tuple[tuple[str, str], BuildResult]],
    verdicts: Mapping[str, Verdict],
    crashed: Mapping[str, Attempt],
) -> Candidates:
    artifacts: dict[str, Artifact] = {}
    failures: list[Attempt] = []
    known: dict[str, Verdict] = {}
    for (subject, _), result in built:
        artifact = result.artifact
        if artifact is None:
            failures.append(Attempt(subject, workload.key, result.outcome, result.reason))
            continue
        key = verdict_key(artifact)
        if key in crashed:
            failures.append(
                Attempt(subject, workload.key, crashed[key].outcome, crashed[key].reason)
            )
        elif key in verdicts and not verdicts[key].correct:
            failures.append(
                Attempt(subject, workload.key, Outcome.WRONG_RESULT, verdicts[key].reason)
            )
        else:
            artifacts[subject] = artifact
            if key in verdicts:
                known[subject] = verdicts[key]
    return Candidates(workload, artifacts, tuple(failures), known)
