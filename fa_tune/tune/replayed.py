"""Which recordings a replay takes: of one GPU, one kind of inputs, one method."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fa_tune import families
from fa_tune.build.compile import kernel_source_sha256
from fa_tune.core import paths
from fa_tune.core.arch import limits
from fa_tune.core.errors import NoUsableVariant, ToolMissing
from fa_tune.core.files import check_folder
from fa_tune.core.inputs import DEFAULT, NORMAL, InputSpec
from fa_tune.core.model import REFERENCE_FAMILY, Variant
from fa_tune.core.options import MachineOptions, MeasureOptions, Progress
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config
from fa_tune.families.equal_sources import Kind, equal, kind_of
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.profile.replay import ReplayProfiler, answering
from fa_tune.store import recordings
from fa_tune.store.recordings import Recording, families_in
from fa_tune.tune.session import Machine, ProfilerSelection

# The methods that searches measure with.
REPLAYED = (NcuProfiler.method, EventsProfiler.method)
# Options that say how to measure, by their names in MeasureOptions and MachineOptions.
_OF_MEASURING = ("runs", "seed", "clock_control", "ncu", "device", "devices")


def _load_recordings(machine: Machine) -> list[Recording]:
    """The recordings to replay from, newest first: of GPUs of the architecture that is compiled
    for, since a choice among another one's kernels is not that of the GPU.

    Raises ToolMissing if there are no recordings, StorageError for a folder that cannot be read,
    NoUsableVariant for none of the architecture.
    """
    folder = machine.options.recordings or paths.profiles_dir()
    if folder.is_dir():
        check_folder(folder)
    found = tuple(r for r in recordings.load_all(folder) if r.meta.provenance.method in REPLAYED)
    if not found:
        lacking = f"no recordings in {folder}" if folder.is_dir() else f"no folder {folder}"
        raise ToolMissing(f"no GPU found, and {lacking} to replay; --recordings names another")
    capabilities = dict.fromkeys(r.meta.device.compute_capability for r in found)
    if machine.limits.compute_capability not in capabilities:
        known = " or ".join(sorted(limits(capability).arch for capability in capabilities))
        raise NoUsableVariant(
            f"no recording is of an {machine.arch} GPU: take --arch {known}, or search on a GPU"
        )
    here = machine.limits.compute_capability
    return [r for r in found if r.meta.device.compute_capability == here]


def _keys(
    workloads: Iterable[Workload], configs: Iterable[Config]
) -> tuple[tuple[str, ...], set[str]]:
    """The keys of workloads, and of variants."""
    subjects = {families.variant(config).key for config in configs}
    return tuple(dict.fromkeys(w.key for w in workloads)), subjects


@dataclass(frozen=True)
class _Group:
    """Recordings that one replay may take, newest first: of one GPU, one kind of inputs and one
    method, which are never mixed."""

    gpu: str
    inputs: str
    method: str
    recordings: tuple[Recording, ...]

    def answers(
        self, workloads: Collection[str], subjects: Collection[str]
    ) -> dict[tuple[str, str], Recording]:
        """The recording that answers for each subject on each workload, without those that none
        holds; where none holds any of them, for all the subjects on these workloads."""
        by_label = {r.label: r for r in self.recordings}
        held = {
            label: {(a.workload, a.subject) for a in recording.attempts if a.workload in workloads}
            for label, recording in by_label.items()
        }
        known: dict[str, set[str]] = {}
        for workload, subject in set().union(*held.values()):
            known.setdefault(workload, set()).add(subject)
        requested = {workload: theirs & set(subjects) for workload, theirs in known.items()}
        if any(requested.values()):
            known = requested
        return {
            (workload, subject): by_label[label]
            for workload in workloads
            for subject, label in answering(held, workload, sorted(known.get(workload, ()))).items()
        }


def replay(
    machine: Machine,
    progress: Progress,
    wanted: Collection[Workload],
    configs: Iterable[Config],
    measure: MeasureOptions,
) -> ProfilerSelection:
    """The recordings of one GPU, one kind of inputs and one method that answer most of what is
    `wanted`, of `configs` if there are any.  Raises ToolMissing without recordings, NoUsableVariant
    without any of the architecture or of the inputs."""
    found = _load_recordings(machine)
    configs = list(configs)
    group = _best_group(_of_inputs(found, measure), wanted, configs, measure.inputs)
    answers = group.answers(*_keys(wanted, configs))
    answered: dict[str, set[Kind]] = {}  # by the recording that answers
    for (workload, _), recording in answers.items():
        answered.setdefault(recording.label, set()).add(kind_of(Workload.from_key(workload)))
    # Those that answer, what answers most first; the others are for what they say of neighbouring
    # workloads.
    n_answers = Counter(recording.label for recording in answers.values())
    sources = sorted(
        (r for r in group.recordings if r.label in answered), key=lambda r: -n_answers[r.label]
    )
    sources = sources or list(group.recordings)
    if answered or not wanted:  # else nothing is replayed
        _tell_what_is_of_no_use(machine.options, measure, progress)
        _tell_missing_references(group, wanted, measure, progress)
    return ProfilerSelection(
        _profiler(group.recordings, sources[0]),
        sources[0].meta.device,
        _source(sources, f"with {group.method} on {group.inputs} inputs", answered),
        sources[0],
        group.recordings,
        tuple(r for r in found if r.meta.device.name == group.gpu),
        inputs=InputSpec.parse(group.inputs),
    )


def _profiler(chosen: Sequence[Recording], first: Recording) -> ReplayProfiler:
    """A replay of the attempts of all, under the conditions of the first."""
    recorded = {r.label: {(a.workload, a.subject): a for a in r.attempts} for r in chosen}
    provenance = first.meta.provenance
    return ReplayProfiler(
        recorded,
        method=provenance.method,
        version=provenance.profiler_version,
        arguments=provenance.profiler_args,
        clock_policy=provenance.clock_policy,
        cache_policy=provenance.cache_policy,
    )


def _source(
    sources: Sequence[Recording], how: str, answered: Mapping[str, Collection[Kind]]
) -> str:
    """Whose measurements these are, and of which kernel sources where not of the present ones."""
    provenance = sources[0].meta.provenance
    names = ", ".join(r.label for r in sources)
    others = [r.label for r in sources if is_of_other_sources(r, answered.get(r.label))]
    if others:
        which = f" ({', '.join(others)})" if len(others) < len(sources) else ""
        how += f", with earlier kernel sources{which} whose times may differ"
    device, date = sources[0].meta.device.name, provenance.recorded_at[:10]
    return f"recorded on an {device} on {date} {how}, replayed from {names}"


def _tell_what_is_of_no_use(
    machine: MachineOptions, measure: MeasureOptions, progress: Progress
) -> None:
    """The options given that say how to measure."""
    given = [name for name in _OF_MEASURING if name in measure.typed | machine.typed]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        progress.note(f"a replay takes no {options}: what was recorded is shown")


def _tell_missing_references(
    group: _Group, wanted: Iterable[Workload], measure: MeasureOptions, progress: Progress
) -> None:
    """The references given that no recording holds for any of the workloads."""
    if "references" not in measure.typed:
        return
    requested = {Variant(REFERENCE_FAMILY, name).key: name for name in measure.references}
    answers = group.answers([w.key for w in wanted], requested)
    held = {subject for _, subject in answers}
    if missing := [name for subject, name in requested.items() if subject not in held]:
        progress.note(f"not recorded: --ref {','.join(missing)}")


def _of_inputs(found: Sequence[Recording], measure: MeasureOptions) -> list[Recording]:
    """The recordings of the inputs that are asked for; where nobody asked for others than the usual
    ones, those of normal inputs too, on which all was measured once.

    Raises NoUsableVariant if there are none.
    """
    requested = measure.inputs
    is_usual = requested == DEFAULT and "inputs" not in measure.typed
    names = {str(requested), str(NORMAL)} if is_usual else {str(requested)}
    theirs = [r for r in found if r.meta.inputs in names]
    if not theirs:
        known = " or ".join(dict.fromkeys(r.meta.inputs for r in found))
        raise NoUsableVariant(
            f"no recording has {requested} inputs: take --inputs {known}, or search on a GPU"
        )
    return theirs


def _best_group(
    found: Sequence[Recording],
    wanted: Collection[Workload],
    configs: Sequence[Config],
    inputs: InputSpec,
) -> _Group:
    """The group that answers on most of the workloads, then for most configs; of equals the one of
    the inputs that were asked for, then the one with most from kernels of this checkout, then the
    one recorded by ncu, of the GPU that would answer best in all dtypes, last."""
    requested, in_all = _keys(wanted, configs), _keys(*_in_all_dtypes(wanted, configs))
    n_recorded = Counter[str]()
    groups: dict[tuple[str, str, str], list[Recording]] = {}
    for recording in found:
        gpu, method = recording.meta.device.name, recording.meta.provenance.method
        n_recorded[gpu] += len(recording.attempts)
        groups.setdefault((gpu, recording.meta.inputs, method), []).append(recording)

    def worth(group: _Group) -> tuple[int, ...]:
        answers = group.answers(*requested)
        of_requested = [workload for workload, subject in answers if subject in requested[1]]
        return (
            len(set(of_requested)),
            len(of_requested),
            len({workload for workload, _ in answers}),
            group.inputs == str(inputs if answers else NORMAL),
            _n_ours(answers),
            group.method == NcuProfiler.method,
            _n_ours(group.answers(*in_all)),
            n_recorded[group.gpu],
        )

    return max((_Group(*key, tuple(those)) for key, those in groups.items()), key=worth)


def _in_all_dtypes(
    wanted: Iterable[Workload], configs: Iterable[Config]
) -> tuple[list[Workload], list[Config]]:
    """The same in every dtype."""
    return (
        [replace(workload, dtype=dtype) for workload in wanted for dtype in DType],
        [replace(config, dtype=dtype) for config in configs for dtype in DType],
    )


def _n_ours(answers: Mapping[tuple[str, str], Recording]) -> int:
    """How many of the answers are of kernels of this checkout."""
    by_label = {recording.label: recording for recording in answers.values()}
    n = Counter(
        (recording.label, kind_of(Workload.from_key(workload)))
        for (workload, _), recording in answers.items()
    )
    return sum(
        n[label, kind] for label, kind in n if not is_of_other_sources(by_label[label], [kind])
    )


def is_of_other_sources(recording: Recording, kinds: Collection[Kind] | None = None) -> bool:
    """Whether a recording's kernels of these kinds, None: of all that it has, are not those of this
    checkout."""
    if kinds is None:
        keys = {a.workload for a in recording.attempts}
        kinds = {kind_of(Workload.from_key(key)) for key in keys}
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
