"""Which profiler measures: what was asked for, what is here, or recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from fa_tune import families
from fa_tune.build.compile import kernel_source_identity
from fa_tune.core.errors import BoardsLost, InvalidConfig, ToolMissing
from fa_tune.core.model import DeviceInfo, Workload
from fa_tune.core.options import MeasureOptions, Progress
from fa_tune.families.base import Config
from fa_tune.families.equal_sources import oldest_equal
from fa_tune.fleet.gpu import Board
from fa_tune.profile.base import Profiler
from fa_tune.profile.events import EventsProfiler
from fa_tune.profile.ncu.profiler import NcuProfiler
from fa_tune.profile.references import require_references
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.store import recordings
from fa_tune.store.recordings import Recording, families_in
from fa_tune.tune.session import Context, load_recordings


@dataclass(frozen=True)
class Measured:
    """A chosen profiler with everything that depends on the choice.

    `device` is the GPU that the measurements belong to: this machine's, or the recording's.
    """

    profiler: Profiler
    device: DeviceInfo
    whose: str
    recording: Recording | None = None  # the newest one replayed
    recordings: tuple[Recording, ...] = ()  # all that are replayed

    def on(self, board: Board) -> Measured:
        """The same on one GPU of several."""
        return dataclasses.replace(self, profiler=board.profiler_here(self.profiler))


def choose_profiler(
    options: MeasureOptions,
    context: Context,
    progress: Progress,
    *,
    export: object = None,
    wanted: Collection[Workload] = (),
    configs: Iterable[Config] = (),
) -> Measured:
    """The profiler that `options.profiler` names.  auto: ncu, then events where ncu is not
    installed, then replay without a GPU, by the method that most of the `wanted` workloads were
    recorded with, of `configs` if there are any.  Raises ToolMissing, also for a reference that
    is to be measured and not there."""
    name = options.profiler
    if name in ("ncu", "events") or (name == "auto" and context.device is not None):
        require_references(options.references)
    if name == "auto":
        name = "ncu" if context.device is not None else "replay"
        if name == "ncu":
            try:
                return _with_ncu(options, context, export)
            except ToolMissing as error:
                progress.warn(f"{error}; timing with CUDA events instead")
                name = "events"
    if name == "replay":
        return _replay(context, progress, wanted, configs)
    if name == "ncu":
        return _with_ncu(options, context, export)
    if name == "events":
        device = context.require_device("the events profiler times kernels on one")
        return _with_events(options, context, device)
    raise InvalidConfig(f"unknown profiler {name!r}")


def fall_back(
    options: MeasureOptions,
    measured: Measured,
    context: Context,
    progress: Progress,
    error: ToolMissing,
) -> Measured:
    """Events in place of an ncu that turned out unable to measure (counters forbidden, too
    old, …), if the user left the choice to us; everything is then measured anew, since
    methods are never mixed.  Raises `error` otherwise."""
    lost = isinstance(error, BoardsLost)
    if options.profiler != "auto" or measured.profiler.method != "ncu" or lost:
        raise error
    progress.warn(f"{error}; timing with CUDA events instead")
    device = context.require_device("the events profiler times kernels on one")
    return _with_events(options, context, device)


def _with_events(options: MeasureOptions, context: Context, device: DeviceInfo) -> Measured:
    profiler = _of_cluster("events", options, context) or EventsProfiler()
    return Measured(profiler, device, f"measured on {_whose(context, device)}")


def _of_cluster(method: str, options: MeasureOptions, context: Context) -> Profiler | None:
    """The profiler of a cluster's boards; None for boards of this machine."""
    if context.pool is None or context.options.ray is None:
        return None
    from fa_tune.fleet.ray_cluster import remote_profiler

    return remote_profiler(context.pool.boards, options, context.options.ncu, method)


def _whose(context: Context, device: DeviceInfo) -> str:
    n = len(context.pool.boards) if context.pool is not None else 1
    place = "this machine's" if context.options.ray is None else "the cluster's"
    return f"{place} {device.name}" if n == 1 else f"{place} {n} x {device.name}"


def _with_ncu(options: MeasureOptions, context: Context, export: object) -> Measured:
    device = context.require_device("ncu profiles kernels on one; --profiler replay needs none")
    profiler = _of_cluster("ncu", options, context) or NcuProfiler(
        ncu=context.options.ncu,
        metric_list=options.metrics,
        clock_control=options.clock_control,
        cache_control=options.cache_control,
        export=export,  # type: ignore[arg-type]
    )
    whose = f"measured on {_whose(context, device)} under ncu {profiler.version}"
    return Measured(profiler, device, whose)


def _replay(
    context: Context,
    progress: Progress,
    wanted: Collection[Workload],
    configs: Iterable[Config],
) -> Measured:
    found = load_recordings(context.options)
    gpu = _most_recorded(found)
    found = tuple(r for r in found if r.meta.device.name == gpu)
    subjects = {families.variant(config).key for config in configs}
    keys = {workload.key for workload in wanted}
    method = _most_wanted(found, keys, subjects)
    chosen = [r for r in found if r.meta.provenance.method == method]
    recorded = {
        recording.label: {(a.workload, a.subject): a for a in recording.attempts}
        for recording in chosen
    }
    # The others are for what they say of neighbouring workloads.
    told = [
        r for r in chosen if any(a.workload in keys and a.subject in subjects for a in r.attempts)
    ] or chosen
    provenance = told[0].meta.provenance
    source = ", ".join(r.label for r in told)
    profiler = ReplayProfiler(
        recorded,
        method=method,
        version=provenance.profiler_version,
        arguments=provenance.profiler_args,
        clock_policy=provenance.clock_policy,
        cache_policy=provenance.cache_policy,
    )
    date = provenance.recorded_at[:10]
    whose = f"recorded on an {gpu} on {date} with {method}, replayed from {source}"
    if any(_is_of_other_sources(recording) for recording in told):
        progress.warn("the recordings were made with other kernel sources than these")
    return Measured(profiler, told[0].meta.device, whose, told[0], tuple(chosen))


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
        if not _is_of_other_sources(recording):
            ours.setdefault(method, set()).update(here)

    def order(method: str) -> tuple[int, int, int, bool]:
        return len(asked[method]), len(ours.get(method, ())), len(held[method]), method == "ncu"

    return max(held, key=order)


def _most_recorded(found: Sequence[Recording]) -> str:
    """The GPU that most attempts are of, of equals the one recorded last: another model's
    recordings beside it do not change what is replayed."""
    counts: dict[str, int] = {}
    for recording in found:  # the newest first, and so the first of equals
        name = recording.meta.device.name
        counts[name] = counts.get(name, 0) + len(recording.attempts)
    return max(counts, key=lambda name: counts[name])


def _is_of_other_sources(recording: Recording) -> bool:
    """Whether a recording's kernels are not those of this checkout."""
    known = set(families_in(recording)) & set(families.family_names())
    return any(
        oldest_equal(name, recordings.kernel_source_sha256(recording, name))
        != kernel_source_identity(name)
        for name in known
    )
