"""Which recordings a replay takes: of one GPU, one kind of inputs, one method."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from fa_tune import families
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core import paths
from fa_tune.core.errors import NoUsableVariant, ToolMissing
from fa_tune.core.inputs import DEFAULT, NORMAL, InputSpec
from fa_tune.core.model import Attempt
from fa_tune.core.options import MachineOptions, Progress
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config
from fa_tune.families.equal_sources import Kind, equal, kind_of
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.profile.replay import ReplayProfiler, answering
from fa_tune.store import recordings
from fa_tune.store.recordings import Recording, families_in
from fa_tune.tune.session import ProfilerSelection

# The methods that searches measure with.
REPLAYED = (NcuProfiler.method, EventsProfiler.method)


def _load_recordings(options: MachineOptions) -> tuple[Recording, ...]:
    """The recordings to replay from, newest first; raises ToolMissing if there are none."""
    folder = options.recordings or paths.profiles_dir()
    found = tuple(r for r in recordings.load_all(folder) if r.meta.provenance.method in REPLAYED)
    if not found:
        raise ToolMissing(
            f"no GPU found, and no recordings in {folder} to replay; --recordings names another"
        )
    return found


def replay(
    options: MachineOptions,
    progress: Progress,
    wanted: Collection[Workload],
    configs: Iterable[Config],
    inputs: InputSpec,
) -> ProfilerSelection:
    """The recordings of one GPU, one kind of inputs and one method that answer most of what is
    `wanted`, of `configs` if there are any.  Raises ToolMissing without recordings, NoUsableVariant
    without any of the inputs."""
    found = _load_recordings(options)
    configs = list(configs)
    subjects = {families.variant(config).key for config in configs}
    # GPU and method do not depend on the dtype: what is asked for in one is asked for in all.
    in_all = {dataclasses.replace(w, dtype=dtype).key for w in wanted for dtype in DType}
    subjects_in_all = {
        families.variant(dataclasses.replace(config, dtype=dtype)).key
        for config in configs
        for dtype in DType
    }
    gpu = _best_recorded(found, in_all, subjects_in_all)
    found = tuple(r for r in found if r.meta.device.name == gpu)
    beside = found
    inputs, found = _of_inputs(found, {w.key for w in wanted}, subjects, inputs)
    method = _most_wanted(found, in_all, subjects_in_all)
    chosen = tuple(r for r in found if r.meta.provenance.method == method)
    recorded = {
        recording.label: {(a.workload, a.subject): a for a in recording.attempts}
        for recording in chosen
    }
    answered: dict[str, set[Kind]] = {}  # by the recording that answers
    for workload in wanted:
        for label in answering(recorded, workload.key, subjects).values():
            answered.setdefault(label, set()).add(kind_of(workload))
    # The others are for what they say of neighbouring workloads.
    told = [r for r in chosen if r.label in answered] or list(chosen)
    if answered or not wanted:  # else nothing is replayed
        _warn_of_other_sources(told, answered, progress)
    profiler = _profiler(recorded, told[0])
    source = _source(told, f"with {method} on {inputs} inputs")
    return ProfilerSelection(
        profiler, told[0].meta.device, source, told[0], chosen, beside, inputs=inputs
    )


def _profiler(
    recorded: Mapping[str, Mapping[tuple[str, str], Attempt]], first: Recording
) -> ReplayProfiler:
    """Of attempts by recording, under the conditions of the first."""
    provenance = first.meta.provenance
    return ReplayProfiler(
        recorded,
        method=provenance.method,
        version=provenance.profiler_version,
        arguments=provenance.profiler_args,
        clock_policy=provenance.clock_policy,
        cache_policy=provenance.cache_policy,
    )


def _source(told: Sequence[Recording], how: str) -> str:
    provenance = told[0].meta.provenance
    names = ", ".join(r.label for r in told)
    date = provenance.recorded_at[:10]
    return f"recorded on an {told[0].meta.device.name} on {date} {how}, replayed from {names}"


def _warn_of_other_sources(
    told: Sequence[Recording], answered: Mapping[str, Collection[Kind]], progress: Progress
) -> None:
    others = [r.label for r in told if is_of_other_sources(r, answered.get(r.label))]
    if not others:
        return
    which = f"{', '.join(others)} {'were' if others[1:] else 'was'}"
    if len(others) == len(told):
        which = "the recordings were"
    progress.warn(
        f"{which} made with other kernel sources than these, whose times may differ; search on a "
        "GPU to measure these"
    )


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
        known = " or ".join(dict.fromkeys(r.meta.inputs for r in found))
        raise NoUsableVariant(
            f"no recording has {asked} inputs: take --inputs {known}, or search on a GPU"
        )
    return asked, theirs


def _most_wanted(
    found: Sequence[Recording], wanted: Collection[str], subjects: Collection[str]
) -> str:
    """Methods are never mixed: the one that covers most of what is wanted; of equals ncu, then the
    one recorded last."""
    covered = _covered(found, wanted, subjects, lambda r: r.meta.provenance.method)
    return max(covered, key=lambda method: (covered[method], method == "ncu"))


def _best_recorded(
    found: Sequence[Recording], wanted: Collection[str], subjects: Collection[str]
) -> str:
    """The GPU that covers most of what is wanted; of equals the one that does so by ncu, then the
    one with most attempts, then the one recorded last."""
    by_ncu = [r for r in found if r.meta.provenance.method == NcuProfiler.method]
    covered, covered_by_ncu = (
        _covered(those, wanted, subjects, lambda r: r.meta.device.name) for those in (found, by_ncu)
    )
    attempts = Counter[str]()
    for recording in found:
        attempts[recording.meta.device.name] += len(recording.attempts)
    nothing = (0, 0, 0)
    return max(
        covered, key=lambda gpu: (covered[gpu], covered_by_ncu.get(gpu, nothing), attempts[gpu])
    )


def _covered(
    found: Sequence[Recording],
    wanted: Collection[str],
    subjects: Collection[str],
    group: Callable[[Recording], str],
) -> dict[str, tuple[int, int, int]]:
    """How many of the wanted workloads each group of recordings holds: with some of the wanted
    subjects, with kernels of this checkout, and at all.  Groups are in the order of `found`."""
    asked, ours, held = (defaultdict[str, set[str]](set) for _ in range(3))
    for recording in found:
        name = group(recording)
        here = {a.workload for a in recording.attempts if a.workload in wanted}
        held[name].update(here)
        asked[name].update(
            a.workload for a in recording.attempts if a.workload in here and a.subject in subjects
        )
        if not is_of_other_sources(recording, _kinds(here)):
            ours[name].update(here)
    return {name: (len(asked[name]), len(ours[name]), len(held[name])) for name in held}


def _kinds(keys: Collection[str]) -> set[Kind]:
    return {kind_of(Workload.from_key(key)) for key in keys}


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
