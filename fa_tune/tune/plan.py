"""What a search is to do, resolved once: nothing but this module reads a search's options."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fa_tune import families, libraries
from fa_tune.build.compile import kernel_source_identity
from fa_tune.core import input_files
from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Artifact
from fa_tune.core.options import (
    DEFAULT_KERNELS,
    Progress,
    SearchOptions,
    Silent,
    WorkloadOptions,
)
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.selection import choose_configs, note_of_d_head
from fa_tune.operations.backward.spec import forward_of
from fa_tune.search.strategies.budget import Budget
from fa_tune.search.strategies.transfer import Prior
from fa_tune.tune.candidates import (
    Defaults,
    RejectedVariants,
    choose_families,
    incumbents,
    prune_configs,
    recorded_configs,
    runnable,
    workloads_for,
)
from fa_tune.tune.measure import Request, request_for
from fa_tune.tune.outputs import Recorder, check_writable, registry_path
from fa_tune.tune.profilers import choose_profiler
from fa_tune.tune.session import Machine, ProfilerSelection, Session, open_machine, open_session
from fa_tune.tune.tie_break import TieBreak, tie_break_for
from fa_tune.tune.unrecorded import recorded_among, recorded_only


@dataclass(frozen=True)
class Candidates:
    """What a search is between: on each of `workloads` the `configs` for it.  `always` are those
    that no strategy may leave out: the defaults, and what the registry holds.  `rejected` are
    configs that cannot run; `requested` are all workloads, in their order."""

    workloads: tuple[Workload, ...]
    configs: tuple[Config, ...]
    always: tuple[Config, ...]
    rejected: RejectedVariants
    requested: tuple[Workload, ...]

    @property
    def unrecorded(self) -> tuple[Workload, ...]:
        """Workloads that a replay knows nothing of."""
        return tuple(w for w in self.requested if w not in self.workloads)


@dataclass(frozen=True)
class Scouting:
    """A strategy and what it may spend on each workload; `audit` of what it skips are measured in
    the final.  It may begin with what `priors` say."""

    strategy: str
    budget: Budget
    audit: int
    priors: Sequence[Prior]


@dataclass(frozen=True)
class SearchPlan:
    """One search: its workloads and `candidates`; the conditions, a `session` and the `tag` of what
    is compared; the budget, `scouting` (None: everything is measured); the rule, `defaults` and
    `tie_break`, and whether choices are to `confirm` and compared with `libraries`; and where
    results go."""

    session: Session
    candidates: Candidates
    tag: str
    scouting: Scouting | None
    defaults: Defaults
    tie_break: TieBreak
    confirm: bool
    libraries: bool
    registry: Path
    csv: Path | None
    recorder: Recorder | None

    def with_session(self, session: Session) -> SearchPlan:
        """The same plan with another profiler."""
        return replace(
            self,
            session=session,
            tie_break=tie_break_for(session, self.candidates.requested),
            recorder=self.recorder and self.recorder.of(session.selection),
        )

    def request(
        self,
        session: Session,
        workload: Workload,
        artifacts: Mapping[str, Artifact],
        keep: tuple[str, ...],
    ) -> Request:
        """The comparison of these variants of a workload; the first of `keep` is the default."""
        return request_for(
            session,
            workload,
            artifacts,
            keep=keep,
            order=self.tie_break.order(workload, artifacts),
            margin=self.tie_break.margin(workload, next(iter(keep), None)),
            search=self.tag,
        )


def passes(options: SearchOptions) -> tuple[SearchOptions, ...]:
    """The searches that options ask for: for a step the forward passes, with the log-sum-exp, then
    the backward passes; else the one.  Nothing of one pass changes the other's time, so the fastest
    step is the fastest of each.  Families that are named are for the pass that they compute."""
    if not options.step:
        return (options,)
    forward = dict.fromkeys(map(forward_of, options.workloads.workloads()))
    grids = (WorkloadOptions.of((*forward,)), options.workloads)
    return tuple(
        replace(
            options,
            workloads=grid,
            families=tuple(n for n in options.families if families.get(n).operation == grid.op),
        )
        for grid in grids
    )


def plan_search(
    options: SearchOptions,
    progress: Progress,
    configs: Sequence[Config] | None = None,
    priors: Sequence[Prior] = (),
) -> SearchPlan:
    """The plan for `configs`, those of the set that the options name, or for a replay those that
    are recorded.  What cannot be understood or kept is refused here, before anything is built.

    Raises InvalidConfig, ToolMissing, StorageError, NoUsableVariant, RegistryError and
    JournalError.
    """
    if options.candidates == "all":
        options = _beside_libraries(options)
    for workload in options.workloads.workloads():
        input_files.check(options.measure.inputs, workload)
    machine = open_machine(options.machine, progress)
    requested = _requested(options, machine, progress, configs)
    registry = registry_path(options.registry)
    check_writable(options, registry)
    wanted = workloads_for(options, requested.configs)
    selection = choose_profiler(
        options.measure, machine, progress, wanted=wanted, configs=requested.configs
    )
    if options.record is not None and not selection.capabilities.measures_anew:
        raise ToolMissing(
            "--record keeps new measurements, and a replay makes none; search on a GPU for it"
        )
    recorded_only(wanted, selection, progress)
    progress.note(selection.source)
    able = choose_families((), machine.limits, selection, workloads=wanted)
    requested = _of_able_families(requested, options, able, progress)
    if configs is None and options.kernels == DEFAULT_KERNELS:  # what was named is what is wanted
        requested = _of_recorded_configs(requested, selection, wanted, progress)
    session = open_session(machine, selection, options.measure, progress, reuse=options.resume)
    defaults = Defaults(machine.limits, able, requested.families, selection.recorded)
    candidates = _candidates(options, requested.configs, session, defaults, registry)
    scouting = None
    if options.explores:
        budget = Budget(options.measurements, options.seconds)
        scouting = Scouting(options.strategy, budget, options.audit, tuple(priors))
    return SearchPlan(
        session,
        candidates,
        _tag(options, defaults),
        scouting,
        defaults,
        tie_break_for(session, candidates.requested),
        options.confirm,
        options.candidates == "all",
        registry,
        options.csv,
        None if options.record is None else Recorder(options.record, options, selection),
    )


def _beside_libraries(options: SearchOptions) -> SearchOptions:
    """The same with the libraries that programs can be led to among the references."""
    references = dict.fromkeys((*options.measure.references, *libraries.serving()))
    return replace(options, measure=replace(options.measure, references=tuple(references)))


def _tag(options: SearchOptions, defaults: Defaults) -> str:
    """The same for a search and its resumption, different for a search of another set, by another
    strategy, or of other kernel sources."""
    sources = (f"{f.name} {kernel_source_identity(f.name)}" for f in defaults.chosen)
    parts = [options.kernels, *options.axes, *options.measure.references, *sources]
    if options.explores:  # whose final has other members, each time
        budget = options.measurements, options.seconds, options.audit
        parts += [options.strategy, *map(str, budget), str(options.measure.seed)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _candidates(
    options: SearchOptions,
    configs: Sequence[Config],
    session: Session,
    defaults: Defaults,
    registry: Path,
) -> Candidates:
    """The set without what cannot run, with the defaults and the incumbents.  Raises
    NoUsableVariant if nothing of the set is left, and RegistryError."""
    machine = session.machine
    kept, rejected = runnable(configs, machine)
    requested = workloads_for(options, kept)
    workloads = recorded_only(requested, session.selection, Silent())
    recorded_among(kept, workloads, session.selection, session.progress)
    others = [
        *defaults.for_workloads(requested),
        *incumbents(registry, session.selection, workloads),
    ]
    always, _ = prune_configs(list(dict.fromkeys(others)), machine.limits)
    every = dict.fromkeys([*kept, *always])
    return Candidates(workloads, tuple(every), tuple(always), rejected, requested)


# Which families and configs -----------------------------------------------------------------------


@dataclass(frozen=True)
class _Requested:
    """The configs to choose among, and the families whose defaults compete with them."""

    families: tuple[KernelFamily, ...]
    configs: Sequence[Config]


def _requested(
    options: SearchOptions,
    machine: Machine,
    progress: Progress,
    configs: Sequence[Config] | None,
) -> _Requested:
    """`configs`, or those of the set or the short form that the options name.  Raises InvalidConfig
    for a set that nobody knows and NoUsableVariant where none can run on the machine."""
    chosen = choose_families(
        options.families, machine.limits, workloads=options.workloads.workloads()
    )
    if configs is None:
        configs = _set_of(options, chosen, named=bool(options.families))
        if not options.families:
            chosen, configs = _without_outrun(chosen, configs, options.workloads.workloads())
    if families.is_config(options.kernels) and (
        note := note_of_d_head(options.kernels, configs[0])
    ):
        progress.note(note)
    runnable(configs, machine)  # said before what is recorded of others
    return _Requested(chosen, configs)


def _without_outrun(
    chosen: tuple[KernelFamily, ...], configs: Sequence[Config], workloads: Sequence[Workload]
) -> tuple[tuple[KernelFamily, ...], Sequence[Config]]:
    """Without families that another one outruns on the device, if that one suits all workloads and
    has configs of the set for all that they have."""
    able = {family.name for family in chosen if all(map(family.suits, workloads))}
    kept = tuple(family for family in chosen if family.outrun_by not in able)
    left = [config for config in configs if families.of(config) in kept]
    if set(map(families.kind_of, left)) != set(map(families.kind_of, configs)):
        return chosen, configs
    return kept, left


def _of_able_families(
    requested: _Requested,
    options: SearchOptions,
    able: tuple[KernelFamily, ...],
    progress: Progress,
) -> _Requested:
    """Without the families of which nothing can be measured, unless the options name families or
    a config."""
    if families.is_config(options.kernels):
        return replace(requested, families=(families.of(requested.configs[0]),))
    if options.families or set(requested.families) <= set(able):
        return requested
    out = ", ".join(f.name for f in requested.families if f not in able)
    progress.note(f"no recording holds kernels of {out}: left out")
    configs = [c for c in requested.configs if families.of(c) in able]
    left = tuple(f for f in requested.families if f in able)
    return _Requested(left, configs) if configs else _Requested(able, _set_of(options, able))


def _of_recorded_configs(
    requested: _Requested,
    selection: ProfilerSelection,
    wanted: Sequence[Workload],
    progress: Progress,
) -> _Requested:
    """For the default set: the recorded configs where no recording holds any of the set, else
    those of the set whose family, dtype and head dimension some recording holds.  As it is where
    nothing is replayed."""
    held = recorded_configs(selection, requested.families, wanted)
    if not held:
        return requested
    if set(held) & set(requested.configs):
        return replace(requested, configs=_of_recorded_kinds(requested.configs, held, progress))
    progress.note(
        f"no recording holds the set {DEFAULT_KERNELS!r}: choosing among the {len(held)} configs "
        "that are recorded"
    )
    return replace(requested, configs=held)


def _set_of(
    options: SearchOptions, chosen: Sequence[KernelFamily], *, named: bool = False
) -> list[Config]:
    grid = options.workloads
    return choose_configs(
        *(options.kernels, grid.dtypes, grid.head_dims, chosen),
        named=named,
        accuracy=grid.accuracy,
    )


def _of_recorded_kinds(
    configs: Sequence[Config], held: Sequence[Config], progress: Progress
) -> list[Config]:
    """The configs without those families, dtypes and d_heads of which no recording holds any of
    them: nothing could be said of these, and compiling them would take its time for nothing."""

    def kind(config: Config) -> str:
        dtype, d_head, d_v, _ = families.kind_of(config)
        heads = f"d_head {d_head}" if d_v == d_head else f"d_head {d_head}, d_head_v {d_v}"
        return f"{dtype.name} {heads} of {families.of(config).name}"

    recorded = {kind(config) for config in set(configs) & set(held)}
    for missing in dict.fromkeys(k for k in map(kind, configs) if k not in recorded):
        progress.note(f"no recording holds kernels for {missing}: left out")
    return [config for config in configs if kind(config) in recorded]
