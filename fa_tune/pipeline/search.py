"""The search: expand → reject → compile → verify → measure → decide → registry."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import families
from fa_tune.compile import BuildRequest, BuildResult
from fa_tune.errors import InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.families.sm80 import FlashForwardKernelConfig
from fa_tune.model import Artifact, Attempt, Outcome, Resources, Verdict, Workload
from fa_tune.options import Progress, SearchOptions
from fa_tune.pipeline.checks import verdict_key, verify_all
from fa_tune.pipeline.context import (
    FAMILY,
    Context,
    build_all,
    choose_configs,
    open_context,
    prune_configs,
)
from fa_tune.pipeline.keeping import (
    check_writable,
    keep_in_registry,
    registry_path,
    save_csv,
    save_recording,
)
from fa_tune.pipeline.measuring import (
    Measured,
    Tally,
    choose_profiler,
    fall_back,
    fingerprint,
    measure_workload,
)
from fa_tune.pipeline.results import SearchResult, WorkloadResult
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.search.decide import Decision, decide
from fa_tune.search.journal import Journal


@dataclass(frozen=True)
class Candidates:
    """Compiled (and, on a GPU, verified) variants of one workload; `failures` are attempts
    that ended before measuring."""

    workload: Workload
    artifacts: Mapping[str, Artifact]  # by variant key
    failures: tuple[Attempt, ...]
    verdicts: Mapping[str, Verdict]  # by variant key


def search(options: SearchOptions, progress: Progress) -> SearchResult:
    """Find the fastest config per workload and keep it in the registry.

    Raises InvalidConfig, ToolMissing, StorageError, NoUsableVariant, RegistryError and
    JournalError; whatever was measured before is in the journal.
    """
    grid = options.workloads
    grid.workloads()  # what cannot be understood is refused before anything is looked for
    configs = choose_configs(options.kernels, grid.dtypes, grid.d_heads)
    context = open_context(options.machine, progress)
    registry = registry_path(options.registry)
    check_writable(options, registry)
    measured = choose_profiler(options.measure, context, progress)
    progress.note(measured.whose)
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
    others = [*defaults_for(kept), *incumbents(registry, measured, workloads)]
    kept, _ = prune_configs(list(dict.fromkeys([*kept, *others])), context)
    candidates = prepare(workloads, kept, options, context, measured, progress)

    tally = Tally()
    try:
        results = measure_all(candidates, options, measured, context, journal, progress, tally)
    except ToolMissing as error:
        measured = fall_back(options.measure, measured, context, progress, error)
        tally = Tally()
        results = measure_all(candidates, options, measured, context, journal, progress, tally)
    resources = {key: a.resources for one in candidates for key, a in one.artifacts.items()}
    verdicts = {one.workload.key: one.verdicts for one in candidates}
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
    )
    if options.csv is not None:
        save_csv(options.csv, result)
    if options.record is not None:
        path = save_recording(options, result, measured, context)
        progress.note(f"recorded in {path}")
    if all(r.decision is None for r in results):
        problems = "; ".join(dict.fromkeys(r.problem for r in results))
        raise NoUsableVariant(f"nothing was measured: {problems}")
    for refused in keep_in_registry(registry, result, measured, verdicts, context):
        progress.note(refused)
    return result


def measure_all(
    candidates: Sequence[Candidates],
    options: SearchOptions,
    measured: Measured,
    context: Context,
    journal: Journal,
    progress: Progress,
    tally: Tally,
) -> list[WorkloadResult]:
    """Measure and decide, workload by workload."""
    results = []
    for one in candidates:
        default = default_key(one.workload)
        attempts = measure_workload(
            one.workload,
            one.artifacts,
            options=options.measure,
            measured=measured,
            context=context,
            journal=journal,
            reuse=options.resume,
            keep=(default,),
            progress=progress,
            tally=tally,
            search=search_id(options),
        )
        results.append(conclude(one, attempts, default))
    return results


def defaults_for(
    configs: Sequence[FlashForwardKernelConfig],
) -> list[FlashForwardKernelConfig]:
    """The default config of each dtype and d_head in a set: whatever set is searched, what is
    kept must not be slower than what runs without any search."""
    family = families.get(FAMILY)
    kinds = dict.fromkeys((c.dtype, c.d_head) for c in configs)
    return [family.default_config(d_head, dtype) for dtype, d_head in kinds]


def incumbents(
    registry: Path, measured: Measured, workloads: Sequence[Workload]
) -> list[FlashForwardKernelConfig]:
    """What the registry holds for these workloads by this method: a search of a smaller set
    must not replace it by something slower, so it competes."""
    from fa_tune.registry import store
    from fa_tune.registry.schema import EntryKey

    known = store.load(registry)
    device = measured.device
    found = []
    for workload in workloads:
        key = EntryKey(
            device.name, device.compute_capability, workload.key, measured.profiler.method
        )
        entry = known.get(key)
        if entry is not None and entry.chosen.family == FAMILY:
            with contextlib.suppress(InvalidConfig):  # of another version, with other knobs
                found.append(families.get(FAMILY).parse(entry.chosen.config))
    return found


def search_id(options: SearchOptions) -> str:
    """The same for a search and its resumption, different for a search of another set."""
    parts = (options.kernels, *options.measure.references)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def workloads_for(
    options: SearchOptions, configs: Sequence[FlashForwardKernelConfig]
) -> tuple[Workload, ...]:
    """The grid's workloads that some config is for; a single short form brings its own dtype
    and head dimension."""
    grid = options.workloads
    if "(" in options.kernels:
        config = configs[0]
        grid = dataclasses.replace(grid, dtypes=(config.dtype,), d_heads=(config.d_head,))
    return grid.workloads()


def default_key(workload: Workload) -> str:
    """The subject of the config that runs without any tuning."""
    family = families.get(FAMILY)
    config = family.default_config(workload.d_head, workload.dtype)
    return families.variant_of(family, config).key


def prepare(
    workloads: Sequence[Workload],
    configs: Sequence[FlashForwardKernelConfig],
    options: SearchOptions,
    context: Context,
    measured: Measured,
    progress: Progress,
) -> list[Candidates]:
    """Compile every config for every workload's traits, and verify what compiled."""
    family = families.get(FAMILY)
    wanted: dict[tuple[str, str], BuildRequest] = {}
    per_workload: list[tuple[Workload, list[tuple[str, str]]]] = []
    for workload in workloads:
        keys = []
        for config in configs:
            if (config.dtype, config.d_head) != (workload.dtype, workload.d_head):
                continue
            variant = families.variant_of(family, config)
            key = (variant.key, family.traits(config, workload))
            wanted.setdefault(key, BuildRequest(variant, key[1], context.arch))
            keys.append(key)
        per_workload.append((workload, keys))
    built = dict(zip(wanted, build_all(list(wanted.values()), context, progress), strict=True))
    artifacts = [b.artifact for b in built.values() if b.artifact is not None]
    verdicts: dict[str, Verdict] = {}
    crashed: dict[str, Attempt] = {}
    if not isinstance(measured.profiler, ReplayProfiler):
        verdicts, crashed = verify_all(
            artifacts,
            fingerprint=fingerprint(measured, context, 0),
            journal=context.journal(),
            reuse=options.resume,
            device=context.options.device,
            seed=options.measure.seed,
            item_timeout_s=options.measure.item_timeout_s,
            progress=progress,
        )
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


def conclude(one: Candidates, attempts: Sequence[Attempt], default: str) -> WorkloadResult:
    """Decide among what was measured."""
    measurements = [a.measurement for a in attempts if a.measurement is not None]
    everything = (*attempts, *one.failures)
    resources: Mapping[str, Resources] = {k: a.resources for k, a in one.artifacts.items()}

    def tie_break(subject: str) -> tuple[int, int]:
        used = resources[subject]
        return used.dynamic_smem_bytes, used.registers

    decision: Decision | None = None
    problem = ""
    try:
        decision = decide(measurements, default, tie_break=tie_break)
    except NoUsableVariant as error:
        reasons = dict.fromkeys(a.reason for a in everything if a.reason)
        problem = next(iter(reasons), str(error))
    except ValueError as error:
        problem = str(error)
    return WorkloadResult(one.workload, everything, decision, problem)
