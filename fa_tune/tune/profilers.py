"""Which profiler measures: what was asked for, what is here, or recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from pathlib import Path

from fa_tune import libraries
from fa_tune.core.errors import GpusLost, InvalidConfig, ToolMissing
from fa_tune.core.model import is_users
from fa_tune.core.options import MeasureOptions, Progress
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config
from fa_tune.tune.fleet.ray_actor import make_profiler
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
            return _measuring("ncu", options, machine, export)
        except ToolMissing as error:
            progress.warn(f"{error}; timing with CUDA events instead")
            name = "events"
    if name == "replay":
        if any(map(is_users, options.references)):
            raise ToolMissing("--with runs kernels on a GPU; recordings hold none of a user's")
        return replay(machine, progress, wanted, configs, options)
    if name in _DOES:
        return _measuring(name, options, machine, export)
    raise InvalidConfig(f"unknown profiler {name!r}")


def fall_back(session: Session, error: ToolMissing) -> Session:
    """Events in place of an ncu that turned out unable to measure (counters forbidden, too
    old, …), if the user left the choice to us; everything is then measured anew, since
    methods are never mixed.  Raises `error` otherwise."""
    may = session.measure.profiler == "auto" and session.capabilities.may_be_refused
    if not may or isinstance(error, GpusLost):
        raise error
    session.progress.warn(f"{error}; timing with CUDA events instead")
    selection = _measuring("events", session.measure, session.machine)
    return dataclasses.replace(session, selection=selection, tally=Tally())


_DOES = {"ncu": "profiles", "events": "times"}


def _measuring(
    method: str, options: MeasureOptions, machine: Machine, export: Path | None = None
) -> ProfilerSelection:
    """The profiler `method` of this machine's GPUs, or of the cluster's."""
    device = machine.require_device(
        f"{method} {_DOES[method]} kernels on one; --profiler replay needs none"
    )
    options, ncu = dataclasses.replace(options, profiler=method), machine.options.ncu
    if machine.options.ray is None:
        place, profiler = "this machine's", make_profiler(options, ncu, export)
    else:
        place, profiler = "the cluster's", remote_profiler(machine.pool.gpus, options, ncu)
    n = len(machine.pool.gpus)
    source = f"measured on {place} {f'{n} x ' if n > 1 else ''}{device.name}"
    if method == "ncu":
        source += f" under ncu {profiler.version}"
    return ProfilerSelection(profiler, device, source, inputs=options.inputs)
