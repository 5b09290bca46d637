"""Which profiler measures: what was asked for, what is here, or recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path

from fa_tune import libraries
from fa_tune.core.errors import GpusLost, InvalidConfig, ToolMissing
from fa_tune.core.model import DeviceInfo, is_users
from fa_tune.core.options import MeasureOptions, Progress
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.profile.base import Profiler
from fa_tune.profile.events import of_regime
from fa_tune.profile.ncu.profiler import ncu_profiler
from fa_tune.tune.fleet.ray_cluster import remote_profiler
from fa_tune.tune.replayed import replay
from fa_tune.tune.session import Machine, ProfilerSelection, Session, Tally


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
        libraries.require(options.references)
    if name == "auto" and machine.device is None:
        name = "replay"
    if name == "auto":
        try:
            return _with_ncu(options, machine, export)
        except ToolMissing as error:
            progress.warn(f"{error}; timing with CUDA events instead")
            name = "events"
    if name == "replay":
        if any(map(is_users, options.references)):
            raise ToolMissing("--with runs kernels on a GPU; recordings hold none of a user's")
        return replay(machine, progress, wanted, configs, options)
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
    return _measuring(profiler, device, options, machine, "")


def _with_ncu(options: MeasureOptions, machine: Machine, export: Path | None) -> ProfilerSelection:
    device = machine.require_device("ncu profiles kernels on one; --profiler replay needs none")
    profiler = _of_cluster("ncu", options, machine) or ncu_profiler(
        ncu=machine.options.ncu,
        metric_list=options.metrics,
        clock_control=options.clock_control,
        cache_control=options.cache_control,
        export=export,
    )
    return _measuring(profiler, device, options, machine, f" under ncu {profiler.version}")


def _of_cluster(method: str, options: MeasureOptions, machine: Machine) -> Profiler | None:
    """The profiler of a cluster's GPUs; None for GPUs of this machine."""
    if machine.options.ray is None:
        return None
    return remote_profiler(machine.pool.gpus, options, machine.options.ncu, method)


def _measuring(
    profiler: Profiler, device: DeviceInfo, options: MeasureOptions, machine: Machine, how: str
) -> ProfilerSelection:
    """A profiler that measures, with the GPUs in words."""
    place = "this machine's" if machine.options.ray is None else "the cluster's"
    n = len(machine.pool.gpus)
    count = f"{n} x " if n > 1 else ""
    source = f"measured on {place} {count}{device.name}{how}"
    return ProfilerSelection(profiler, device, source, inputs=options.inputs)
