"""What all commands need first: the device, its limits, the stores; and a set as configs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import families
from fa_tune.build.cache import ArtifactStore, default_cache_dir
from fa_tune.build.compile import BuildRequest, BuildResult, build
from fa_tune.core import devices, paths
from fa_tune.core.arch import ArchLimits, limits, parse_arch
from fa_tune.core.errors import InvalidConfig, ToolMissing
from fa_tune.core.jobs import WARM_UP_MODULES
from fa_tune.core.model import DeviceInfo, DType, Rejected, Variant, Workload
from fa_tune.core.options import MachineOptions, Progress, SearchOptions
from fa_tune.families.base import Config, KernelFamily
from fa_tune.fleet.gpu import Board, local_boards
from fa_tune.fleet.pool import Pool
from fa_tune.search.prune import prune
from fa_tune.store import recordings
from fa_tune.store.journal import Journal
from fa_tune.store.recordings import Recording
from fa_tune.workers.child import worker_environment
from fa_tune.workers.prefork import preforked_workers, warm_up

JOURNAL = "journal.jsonl"
DEFAULT_ARCH = "sm_90"


@dataclass(frozen=True)
class Context:
    """The machine as this run sees it.  `device` is None without a GPU; `pool` are the GPUs to
    use at the same time where there are several, `device` the first of them; `seat` is the one
    that a job was given."""

    options: MachineOptions
    device: DeviceInfo | None
    limits: ArchLimits
    store: ArtifactStore
    cache_dir: Path
    pool: Pool | None = None
    seat: Board | None = None

    @property
    def board(self) -> str:
        """The UUID of `device`, to which workers are pinned; empty where it is not known."""
        return self.device.uuid if self.device is not None else ""

    def on(self, board: Board) -> Context:
        """The same for a job on one board."""
        return dataclasses.replace(self, device=board.device, pool=None, seat=board)

    @property
    def arch(self) -> str:
        """What is compiled for, `sm_90`."""
        return self.limits.arch

    def require_device(self, why: str) -> DeviceInfo:
        """The GPU; raises ToolMissing saying what needed it."""
        if self.device is None:
            raise ToolMissing(f"no GPU found: {why}")
        return self.device

    def journal(self) -> Journal:
        """The journal of this cache folder; raises JournalError if it is damaged."""
        return Journal(self.cache_dir / JOURNAL)


def open_context(machine: MachineOptions, progress: Progress) -> Context:
    """Look at the machine; raises ToolMissing and InvalidConfig, never for a missing GPU."""
    pool: Pool | None = None
    if machine.devices:
        if machine.device:
            raise InvalidConfig("--device names one GPU and --devices several; give one of them")
        pool = Pool(local_boards(machine.devices))
    if machine.ray is not None:
        if machine.devices or machine.device:
            raise InvalidConfig("--ray uses the cluster's GPUs; leave out --device and --devices")
        from fa_tune.fleet.ray_cluster import ray_boards

        pool = Pool(ray_boards(machine.ray, progress))
    device = pool.boards[0].device if pool else devices.find_device(machine.device)
    if machine.arch is not None:
        found = parse_arch(machine.arch)
        if device is not None and found.compute_capability != device.compute_capability:
            progress.note(f"compiling for {found.arch}, which is not this GPU's architecture")
    elif device is not None:
        found = limits(device.compute_capability)
    else:
        found = parse_arch(DEFAULT_ARCH)
    cache_dir = machine.cache_dir or default_cache_dir()
    store = ArtifactStore(cache_dir, warn=progress.warn)
    return Context(machine, device, found, store, cache_dir, pool)


def ready_workers(machine: MachineOptions) -> contextlib.AbstractContextManager[None]:
    """Within it, workers on this machine's GPU need not import torch first.  Several boards have
    workers of their own threads, and none of these."""
    if machine.devices or machine.ray is not None or devices.find_device(machine.device) is None:
        return contextlib.nullcontext()
    return preforked_workers(WARM_UP_MODULES, worker_environment({}))


def load_recordings(machine: MachineOptions) -> tuple[Recording, ...]:
    """The recordings to replay from, newest first; raises ToolMissing if there are none."""
    folder = machine.recordings or paths.profiles_dir()
    found = recordings.load_all(folder)
    if not found:
        raise ToolMissing(f"no GPU found, and no recordings in {folder} to replay")
    return found


def choose_configs(
    kernels: str,
    dtypes: Sequence[DType],
    d_heads: Sequence[int],
    chosen: Sequence[KernelFamily],
    *,
    named: bool = False,
) -> list[Config]:
    """The configs of a set of these families for every dtype and d_head (no dtypes: the set's
    own), or the one config of a short form, which tells its family by itself.

    `named`: the families were asked for by name, so a config of another one is refused.
    Raises InvalidConfig.
    """
    if families.is_config(kernels):
        config = families.parse(kernels)
        if named and families.of(config) not in chosen:
            asked = ", ".join(f.name for f in chosen)
            raise InvalidConfig(
                f"the config is of family {families.of(config).name}, but {asked} is asked for"
            )
        return [config]
    only = tuple(dtypes) or None
    configs = [
        config
        for d_head in d_heads
        for config in families.named_configs(kernels, chosen, dtypes=only, d_head=d_head)
    ]
    if not configs:
        raise InvalidConfig(f"the set {kernels!r} has no config for this dtype and d_head")
    return list(dict.fromkeys(configs))


def workloads_for(options: SearchOptions, configs: Sequence[Config]) -> tuple[Workload, ...]:
    """The grid's workloads that some config is for; a single short form brings its own dtype
    and head dimension."""
    grid = options.workloads
    if families.is_config(options.kernels):
        config = configs[0]
        grid = dataclasses.replace(grid, dtypes=(config.dtype,), d_heads=(config.d_head,))
    return grid.workloads()


def prune_configs(
    configs: Sequence[Config], context: Context
) -> tuple[list[Config], tuple[tuple[Variant, Rejected], ...]]:
    """What can run on the context's architecture, and what cannot with its reason."""
    pruned = prune(configs, context.limits, families.constraints)
    rejected = tuple((families.variant(c), reason) for c, reason in pruned.rejected)
    return list(pruned.kept), rejected


def build_request(config: Config, traits: str, context: Context) -> BuildRequest:
    """What to compile for a config on the context's device: families may want an architecture
    of their own there (`sm_90a`)."""
    family = families.of(config)
    arch = family.compile_arch(context.limits)
    return BuildRequest(families.variant_of(family, config), traits, arch)


def build_all(
    requests: Sequence[BuildRequest],
    context: Context,
    progress: Progress,
    meanwhile: Callable[[Sequence[BuildResult]], None] | None = None,
) -> list[BuildResult]:
    """Compile with progress; results in the order of the requests.  `meanwhile` gets those there
    are when the rest turns out to take much longer, and is waited for."""
    progress.stage("compile", len(requests))
    warm_up()
    done: list[BuildResult] = []

    def on_result(result: BuildResult) -> None:
        done.append(result)
        progress.advance(result.request.variant.config)

    def on_idle() -> None:
        if meanwhile is not None:
            meanwhile(done)
            progress.stage("compile", len(requests) - len(done))

    return build(
        requests,
        context.store,
        jobs=context.options.jobs,
        timeout_s=context.options.compile_timeout_s,
        on_result=on_result,
        on_idle=on_idle,
    )
