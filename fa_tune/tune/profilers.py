"""Which profiler measures: what was asked for, what is here, or recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from fa_tune import families
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core import paths
from fa_tune.core.errors import GpusLost, InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.core.inputs import DEFAULT, NORMAL, InputSpec
from fa_tune.core.model import DeviceInfo
from fa_tune.core.options import MachineOptions, MeasureOptions, Progress
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config
from fa_tune.families.equal_sources import Kind, equal, kind_of
from fa_tune.profile.base import Profiler
from fa_tune.profile.events import EventsProfiler, of_regime
from fa_tune.profile.ncu.profiler import NcuProfiler, ncu_profiler
from fa_tune.profile.references import require_references
from fa_tune.profile.replay import ReplayProfiler, answering
from fa_tune.store import recordings
from fa_tune.store.recordings import Recording, families_in
from fa_tune.tune.fleet.ray_cluster import remote_profiler
from fa_tune.tune.session import Machine, ProfilerSelection, Session, Tally

# The methods that searches measure with.
REPLAYED = (NcuProfiler.method, EventsProfiler.method)


def choose_profiler(
    options: MeasureOptions,
    machine: Machine,
    progress: Progress,
    *,
    export: Path | None = None,
    wanted: Collection[Workload] = (),
    configs: Iterable[Config] = (),
) -> ProfilerSelection:
    """The profiler that `options.profiler` names.  auto: ncu, then events where ncu is not
    installed, then replay without a GPU, by the method that most of the `wanted` workloads were
    recorded with, of `configs` if there are any.  Raises ToolMissing, also for a reference that
    is to be measured and not there."""
    name = options.profiler
    if name in ("ncu", "events") or (name == "auto" and machine.device is not None):
        require_references(options.references)
    if name == "auto":
        name = "ncu" if machine.device is not None else "replay"
        if name == "ncu":
            try:
                return _with_ncu(options, machine, export)
            except ToolMissing as error:
                progress.warn(f"{error}; timing with CUDA events instead")
                name = "events"
    if name == "replay":
        return _replay(machine, progress, wanted, configs, options.inputs)
    if name == "ncu":
        return _with_ncu(options, machine, export)
    if name == "events":
        return _with_events(options, machine)
    raise InvalidConfig(f"unknown profiler {name!r}")


def fall_back(session: Session, error: ToolMissing) -> Session:
    """Events in place of an ncu that turned out unable to measure (counters forbidden, too
    old, …), if the user left the choice to us; everything is then measured anew, since
    methods are never mixed.  Raises `error` otherwise."""
    may = session.measure.profiler == "auto" and session.capabilities.may_be_refused
    if not may or isinstance(error, GpusLost):
        raise error
    session.progress.warn(f"{error}; timing with CUDA events instead")
    selection = _with_events(session.measure, session.machine)
    return dataclasses.replace(session, selection=selection, tally=Tally())


def _with_events(options: MeasureOptions, machine: Machine) -> ProfilerSelection:
    device = machine.require_device("events times kernels on one; --profiler replay needs none")
    profiler = _of_cluster("events", options, machine) or of_regime(options.regime)
    source = f"measured on {_gpus_in_words(machine, device)}"
    return ProfilerSelection(profiler, device, source, inputs=options.inputs)


def _of_cluster(method: str, options: MeasureOptions, machine: Machine) -> Profiler | None:
    """The profiler of a cluster's GPUs; None for GPUs of this machine."""
    if machine.options.ray is None:
        return None
    return remote_profiler(machine.pool.gpus, options, machine.options.ncu, method)


def _gpus_in_words(machine: Machine, device: DeviceInfo) -> str:
    n = len(machine.pool.gpus)
    place = "this machine's" if machine.options.ray is None else "the cluster's"
    return f"{place} {device.name}" if n == 1 else f"{place} {n} x {device.name}"


def _with_ncu(options: MeasureOptions, machine: Machine, export: Path | None) -> ProfilerSelection:
    device = machine.require_device("ncu profiles kernels on one; --profiler replay needs none")
    profiler = _of_cluster("ncu", options, machine) or ncu_profiler(
        ncu=machine.options.ncu,
        metric_list=options.metrics,
        clock_control=options.clock_control,
        cache_control=options.cache_control,
        export=export,
    )
    source = f"measured on {_gpus_in_words(machine, device)} under ncu {profiler.version}"
    return ProfilerSelection(profiler, device, source, inputs=options.inputs)


def _load_recordings(options: MachineOptions) -> tuple[Recording, ...]:
    """The recordings to replay from, newest first; raises ToolMissing if there are none."""
    folder = options.recordings or paths.profiles_dir()
    found = tuple(r for r in recordings.load_all(folder) if r.meta.provenance.method in REPLAYED)
    if not found:
        raise ToolMissing(
            f"no GPU found, and no recordings in {folder} to replay; --recordings names another"
        )
    return found


def _replay(
    machine: Machine,
    progress: Progress,
    wanted: Collection[Workload],
    configs: Iterable[Config],
    inputs: InputSpec,
) -> ProfilerSelection:
    found = _load_recordings(machine.options)
    gpu = _most_recorded(found)
    found = tuple(r for r in found if r.meta.device.name == gpu)
    configs = list(configs)
    subjects = {families.variant(config).key for config in configs}
    keys = {workload.key for workload in wanted}
    inputs, found = _of_inputs(found, keys, subjects, inputs)
    # The method does not hang on the dtype: what is asked for in one is asked for in all.
    method = _most_wanted(
        found,
        {dataclasses.replace(w, dtype=dtype).key for w in wanted for dtype in DType},
        {
            families.variant(dataclasses.replace(config, dtype=dtype)).key
            for config in configs
            for dtype in DType
        },
    )
    chosen = [r for r in found if r.meta.provenance.method == method]
    recorded = {
        recording.label: {(a.workload, a.subject): a for a in recording.attempts}
        for recording in chosen
    }
    # The others are for what they say of neighbouring workloads.
    answered: dict[str, set[Kind]] = {}  # by the recording that answers
    for workload in wanted:
        for label in answering(recorded, workload.key, subjects).values():
            answered.setdefault(label, set()).add(kind_of(workload))
    told = [r for r in chosen if r.label in answered] or chosen
    provenance = told[0].meta.provenance
    profiler = ReplayProfiler(
        recorded,
        method=method,
        version=provenance.profiler_version,
        arguments=provenance.profiler_args,
        clock_policy=provenance.clock_policy,
        cache_policy=provenance.cache_policy,
    )
    date = provenance.recorded_at[:10]
    names = ", ".join(r.label for r in told)
    how = f"with {method} on {inputs} inputs"
    source = f"recorded on an {gpu} on {date} {how}, replayed from {names}"
    # Where none answers, nothing is replayed.
    judged = [] if wanted and not answered else told
    if others := [r.label for r in judged if is_of_other_sources(r, answered.get(r.label))]:
        progress.warn(
            f"{_which(others, len(judged))} made with other kernel sources than these, whose times "
            "may differ; search on a GPU to measure these"
        )
    device = told[0].meta.device
    return ProfilerSelection(profiler, device, source, told[0], tuple(chosen), inputs)


def _which(labels: Sequence[str], of: int) -> str:
    if len(labels) == of:
        return "the recordings were"
    return f"{', '.join(labels)} {'were' if labels[1:] else 'was'}"


def _of_inputs(
    found: Sequence[Recording],
    wanted: Collection[str],
    subjects: Collection[str],
    asked: InputSpec,
) -> tuple[InputSpec, tuple[Recording, ...]]:
    """The recordings of the inputs that are asked for.  Where those hold none of the workloads that
    are wanted, or less than those of normal inputs, on which all was measured once, and nobody
    asked for others than the usual ones, these.

    Raises NoUsableVariant if there are none.
    """

    def recorded(inputs: InputSpec) -> tuple[Recording, ...]:
        return tuple(r for r in found if r.meta.inputs == str(inputs))

    def held(recordings: Sequence[Recording]) -> tuple[int, int]:
        attempts = [a for r in recordings for a in r.attempts if a.workload in wanted]
        by_subjects = {a.workload for a in attempts if a.subject in subjects}
        return len(by_subjects), len({a.workload for a in attempts})

    theirs, normal = recorded(asked), recorded(NORMAL)
    if asked == DEFAULT and normal and (held(theirs) == (0, 0) or held(theirs) < held(normal)):
        return NORMAL, normal
    if not theirs:
        known = ", ".join(dict.fromkeys(r.meta.inputs for r in found))
        raise NoUsableVariant(f"no recording has {asked} inputs; recorded are: {known}")
    return asked, theirs


def _most_wanted(
    found: Sequence[Recording], wanted: Collection[str], subjects: Collection[str]
) -> str:
    """Methods are never mixed: the one that holds most of the wanted workloads with some of the
    wanted subjects; of equals the one with most by the kernels of this checkout, then with most
    at all, then ncu, then the one recorded last."""
    asked: dict[str, set[str]] = {}
    ours: dict[str, set[str]] = {}
    held: dict[str, set[str]] = {}
    for recording in found:  # the newest first
        here = {a.workload for a in recording.attempts if a.workload in wanted}
        method = recording.meta.provenance.method
        held.setdefault(method, set()).update(here)
        asked.setdefault(method, set()).update(
            a.workload for a in recording.attempts if a.workload in here and a.subject in subjects
        )
        if not is_of_other_sources(recording, _kinds(here)):
            ours.setdefault(method, set()).update(here)

    def order(method: str) -> tuple[int, int, int, bool]:
        return len(asked[method]), len(ours.get(method, ())), len(held[method]), method == "ncu"

    return max(held, key=order)


def _kinds(keys: Collection[str]) -> set[Kind]:
    return {kind_of(Workload.from_key(key)) for key in keys}


def _most_recorded(found: Sequence[Recording]) -> str:
    """The GPU that most attempts are of, of equals the one recorded last: another model's
    recordings beside it do not change what is replayed."""
    counts: dict[str, int] = {}
    for recording in found:  # the newest first, and so the first of equals
        name = recording.meta.device.name
        counts[name] = counts.get(name, 0) + len(recording.attempts)
    return max(counts, key=lambda name: counts[name])


def is_of_other_sources(recording: Recording, kinds: Collection[Kind] | None = None) -> bool:
    """Whether a recording's kernels of these kinds, None: of all that it has, are not those of this
    checkout."""
    if kinds is None:
        kinds = _kinds({a.workload for a in recording.attempts})
    known = set(families_in(recording)) & set(families.family_names())
    return not all(
        equal(
            name,
            recordings.kernel_source_sha256(recording, name),
            kernel_source_sha256(name),
            kinds,
        )
        for name in known
    )
