"""What every command has first: the machine, the profiler that was selected, and the session that
holds both with the journal, the options and whoever watches."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import kernel_source_identity
from fa_tune.build.native.library import core_library
from fa_tune.core import devices, input_files
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import FaTuneError, InvalidConfig, ToolMissing
from fa_tune.core.inputs import DEFAULT, NORMAL, InputSpec
from fa_tune.core.jobs import WARM_UP_MODULES
from fa_tune.core.model import DeviceInfo, Variant
from fa_tune.core.options import MachineOptions, MeasureOptions, Progress
from fa_tune.core.paths import default_cache_dir
from fa_tune.core.workload import Workload
from fa_tune.profile.base import Capabilities, Profiler
from fa_tune.store.fingerprint import Fingerprint
from fa_tune.store.journal import Journal
from fa_tune.store.recordings import Recording
from fa_tune.tune.fleet.gpu import WorkerGpu, local_gpus
from fa_tune.tune.fleet.pool import Pool, kept_lanes
from fa_tune.tune.fleet.ray_cluster import ray_gpus
from fa_tune.workers.prefork import preforked_workers, warm_up

JOURNAL = "journal.sqlite"


@dataclass(frozen=True)
class Machine:
    """What this run has to work with: its GPUs (`pool`: none, one or several), the limits of the
    architecture that is compiled for, and the stores."""

    options: MachineOptions
    limits: ArchLimits
    store: ArtifactStore
    cache_dir: Path
    pool: Pool

    @property
    def device(self) -> DeviceInfo | None:
        """The first GPU; None without one."""
        return self.pool.gpus[0].device if self.pool.gpus else None

    @property
    def gpu_uuid(self) -> str:
        """The UUID of `device`, to which workers are pinned; empty where it is not known."""
        return self.device.uuid if self.device is not None else ""

    @property
    def arch(self) -> str:
        """What is compiled for, `sm_90`."""
        return self.limits.arch

    def require_device(self, why: str) -> DeviceInfo:
        """The GPU, and the C++ core for its workers.  Raises ToolMissing, without a GPU saying what
        needed it."""
        if self.device is None:
            raise ToolMissing(f"no GPU found: {why}")
        if self.options.ray is None:  # the cluster's workers have theirs
            core_library()
        return self.device

    def on(self, gpu: WorkerGpu) -> Machine:
        """The same for a job on one of several GPUs, with its share of the cores for compiling."""
        jobs = self.options.jobs or len(os.sched_getaffinity(0))
        share = max(1, jobs // len(self.pool.present))
        return dataclasses.replace(
            self, options=dataclasses.replace(self.options, jobs=share), pool=Pool((gpu,))
        )


def open_machine(options: MachineOptions, progress: Progress) -> Machine:
    """Look at the machine; raises ToolMissing and InvalidConfig, never for a missing GPU."""
    gpus = _gpus(options) if options.ray is None else _of_cluster(options, options.ray, progress)
    pool = Pool(gpus)
    device = pool.gpus[0].device if pool.gpus else None
    found = devices.limits_for(options.arch, device)
    if device is not None and found.compute_capability != device.compute_capability:
        progress.note(f"compiling for {found.arch}, which is not this GPU's architecture")
    cache_dir = options.cache_dir or default_cache_dir()
    return Machine(options, found, ArtifactStore(cache_dir, warn=progress.warn), cache_dir, pool)


def _gpus(options: MachineOptions) -> Sequence[WorkerGpu]:
    if options.devices and options.device:
        raise InvalidConfig("--device names one GPU and --devices several; give one of them")
    if options.devices:
        return local_gpus(options.devices)
    device = devices.find_device(options.device)
    return () if device is None else (WorkerGpu(f"GPU {options.device}", device, options.device),)


def _of_cluster(options: MachineOptions, address: str, progress: Progress) -> Sequence[WorkerGpu]:
    if options.devices or options.device:
        raise InvalidConfig("--ray uses the cluster's GPUs; leave out --device and --devices")
    return ray_gpus(address, progress)


@contextlib.contextmanager
def ready_workers(options: MachineOptions) -> Iterator[None]:
    """Within it, workers on this machine's GPUs need not import torch first; for each GPU one
    begins to at once."""
    gpus: Sequence[WorkerGpu] = ()
    with contextlib.suppress(FaTuneError):  # `open_machine` will say
        gpus = () if options.ray is not None else _gpus(options)
    with contextlib.ExitStack() as kept:
        if gpus:
            kept.enter_context(devices.kept_ready())
        if options.ray is not None:  # the workers wait at the cluster's
            kept.enter_context(kept_lanes())
        elif len(gpus) == 1:
            kept.enter_context(preforked_workers(WARM_UP_MODULES))
            warm_up()
        elif gpus:
            lanes = kept.enter_context(kept_lanes(WARM_UP_MODULES))
            for gpu in gpus:
                lanes[gpu.label].submit(warm_up)
        yield


@dataclass(frozen=True)
class ProfilerSelection:
    """The profiler that measures, with everything that depends on the choice.

    `device` is the GPU that the measurements belong to: this machine's, or the recording's.
    `source` says for a reader where they come from, `inputs` are what they were taken on.
    """

    profiler: Profiler
    device: DeviceInfo
    source: str
    recording: Recording | None = None  # the newest one replayed
    recordings: tuple[Recording, ...] = ()  # all that are replayed
    of_same_gpu: tuple[Recording, ...] = ()  # all of the same GPU, by whatever method
    inputs: InputSpec = DEFAULT
    # Those on several GPUs, by their labels.
    _on: dict[str, Profiler] = field(default_factory=dict, repr=False, compare=False)

    @property
    def method(self) -> str:
        """`ncu` or `events`; a replay's is its recordings'."""
        return self.profiler.method

    @property
    def capabilities(self) -> Capabilities:
        return self.profiler.capabilities

    @cached_property
    def recorded(self) -> Mapping[str, set[str]]:
        """Subjects that the replayed recordings hold, by workload; none where nothing is
        replayed."""
        found: dict[str, set[str]] = {}
        for recording in self.recordings:
            for attempt in recording.attempts:
                found.setdefault(attempt.workload, set()).add(attempt.subject)
        return found

    def recorded_for(self, workloads: Iterable[Workload]) -> set[str]:
        """Subjects that they hold for any of these workloads."""
        return set().union(*(self.recorded.get(w.key, ()) for w in workloads))

    def on(self, gpu: WorkerGpu) -> ProfilerSelection:
        """The same on one of several GPUs, which has one profiler for all its jobs."""
        if gpu.label not in self._on:
            self._on[gpu.label] = gpu.profiler_here(self.profiler)
        return dataclasses.replace(self, profiler=self._on[gpu.label])


@dataclass
class Tally:
    """Attempts taken from the journal, or replayed, and attempts made now."""

    reused: int = 0
    measured: int = 0

    def add(self, other: Tally) -> None:
        self.reused += other.reused
        self.measured += other.measured


@dataclass(frozen=True)
class Session:
    """One command at work.  `reuse`: take finished attempts from the journal.

    Nothing here changes but the tally: whoever works under other conditions makes a session of
    its own with `dataclasses.replace`.  The machine stays a value inside it, because it is known
    first: no profiler can be selected without it, and `build` and `doctor` need nothing else.
    """

    machine: Machine
    selection: ProfilerSelection
    journal: Journal
    measure: MeasureOptions
    progress: Progress
    reuse: bool = True
    tally: Tally = field(default_factory=Tally)

    @property
    def pool(self) -> Pool:
        return self.machine.pool

    @property
    def capabilities(self) -> Capabilities:
        return self.selection.capabilities

    @property
    def runs(self) -> int:
        """Samples of each subject: as asked for, or the profiler's own number."""
        return self.measure.runs or self.selection.profiler.default_runs

    @cached_property
    def inputs_identity(self) -> str:
        """What the inputs are, for a fingerprint; of a file, by what it holds."""
        spec = self.measure.inputs
        return "" if spec == NORMAL else input_files.identity(spec)

    def on(self, gpu: WorkerGpu, progress: Progress) -> Session:
        """The same for one job on a GPU of the pool, with a tally of its own."""
        own = dataclasses.replace(self, progress=progress, tally=Tally())
        if not self.pool.has_several:  # it is there already
            return own
        return dataclasses.replace(
            own, machine=self.machine.on(gpu), selection=self.selection.on(gpu)
        )

    def with_runs(self, runs: int | None) -> Session:
        """The same with another number of samples, and no references beside."""
        measure = dataclasses.replace(self.measure, runs=runs, references=())
        return dataclasses.replace(self, measure=measure)

    def with_inputs(self, inputs: InputSpec) -> Session:
        return dataclasses.replace(self, measure=dataclasses.replace(self.measure, inputs=inputs))

    def fingerprint(self, runs: int, names: Sequence[str]) -> Fingerprint:
        """What an attempt depends on: one at a variant, with its family's name, on that family's
        sources and architecture; one at a reference, which is measured for comparison, on those
        of all families beside it.  No names: all families."""
        profiler, device = self.selection.profiler, self.selection.device
        names = sorted(set(names)) or sorted(families.family_names())
        archs = (families.get(name).compile_arch(self.machine.limits) for name in names)
        return Fingerprint(
            kernel_source_sha256=kernel_source_identity(*names),
            nvrtc=nvrtc.version(),
            arch="+".join(dict.fromkeys(archs)),
            driver=device.driver,
            gpu=device.name,
            method=profiler.method,
            profiler_version=profiler.version,
            metrics=profiler.metrics,
            clock_policy=profiler.clock_policy,
            cache_policy=profiler.cache_policy,
            runs=runs,
            inputs=self.inputs_identity,
        )

    def fingerprint_without_profiler(self, method: str, subjects: Iterable[str]) -> Fingerprint:
        """What a comparison after the search depends on, which workers time by themselves."""
        names = sorted({Variant.from_key(subject).family for subject in subjects})
        return dataclasses.replace(
            self.fingerprint(0, names),
            method=method,
            profiler_version="",
            metrics=(),
            clock_policy="unlocked",
            cache_policy="cold-rotate",
        )


def open_session(
    machine: Machine,
    selection: ProfilerSelection,
    measure: MeasureOptions,
    progress: Progress,
    *,
    reuse: bool = True,
) -> Session:
    """A session with the journal of the machine's cache folder; a profiler that needs no GPU gets
    none.  Raises JournalError for a damaged journal."""
    journal = Journal(machine.cache_dir / JOURNAL)
    for warning in journal.warnings:
        progress.warn(warning)
    if not selection.capabilities.needs_device:
        machine = dataclasses.replace(machine, pool=Pool())
    return Session(machine, selection, journal, measure, progress, reuse)
