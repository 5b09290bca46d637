"""What all commands need first: the device, its limits, the stores; and the set as variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import device as devices
from fa_tune import families, paths, recordings
from fa_tune.arch import ArchLimits, limits, parse_arch
from fa_tune.artifacts import ArtifactStore, default_cache_dir
from fa_tune.compile import BuildRequest, BuildResult, build
from fa_tune.errors import InvalidConfig, ToolMissing
from fa_tune.families.sm80 import FlashForwardKernelConfig
from fa_tune.families.sm80_sets import select_configs
from fa_tune.model import DeviceInfo, DType, Rejected, Variant
from fa_tune.options import MachineOptions, Progress
from fa_tune.recordings import Recording
from fa_tune.search.journal import Journal
from fa_tune.search.prune import prune

JOURNAL = "journal.jsonl"
DEFAULT_ARCH = "sm_90"
FAMILY = "sm80"  # the sets of the seed API are this family's


@dataclass(frozen=True)
class Context:
    """The machine as this run sees it.  `device` is None without a GPU."""

    options: MachineOptions
    device: DeviceInfo | None
    limits: ArchLimits
    store: ArtifactStore
    cache_dir: Path

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
    device = devices.find_device(machine.device)
    if machine.arch is not None:
        found = parse_arch(machine.arch)
        if device is not None and found.compute_capability != device.compute_capability:
            progress.note(f"compiling for {found.arch}, which is not this GPU's architecture")
    elif device is not None:
        found = limits(device.compute_capability)
    else:
        found = parse_arch(DEFAULT_ARCH)
    cache_dir = machine.cache_dir or default_cache_dir()
    return Context(machine, device, found, ArtifactStore(cache_dir, warn=progress.warn), cache_dir)


def load_recordings(machine: MachineOptions) -> tuple[Recording, ...]:
    """The recordings to replay from, newest first; raises ToolMissing if there are none."""
    folder = machine.recordings or paths.profiles_dir()
    found = recordings.load_all(folder)
    if not found:
        raise ToolMissing(f"no GPU found, and no recordings in {folder} to replay")
    return found


def choose_configs(
    kernels: str, dtypes: Sequence[DType], d_heads: Sequence[int]
) -> list[FlashForwardKernelConfig]:
    """The configs of a set for every dtype and d_head, or the one config of a short form."""
    if "(" in kernels:
        return select_configs(kernels)
    only = tuple(dtypes) or None  # None: the set's own dtypes
    chosen = [c for d in d_heads for c in select_configs(kernels, dtypes=only, d_head=d)]
    if not chosen:
        raise InvalidConfig(f"the set {kernels!r} has no config for this dtype and d_head")
    return list(dict.fromkeys(chosen))


def prune_configs(
    configs: Sequence[FlashForwardKernelConfig], context: Context
) -> tuple[list[FlashForwardKernelConfig], tuple[tuple[Variant, Rejected], ...]]:
    """What can run on the context's architecture, and what cannot with its reason."""
    family = families.get(FAMILY)
    pruned = prune(configs, context.limits, family.constraints)
    rejected = tuple((families.variant_of(family, c), reason) for c, reason in pruned.rejected)
    return list(pruned.kept), rejected


def build_all(
    requests: Sequence[BuildRequest], context: Context, progress: Progress
) -> list[BuildResult]:
    """Compile with progress; results in the order of the requests."""
    progress.stage("compile", len(requests))

    def on_result(result: BuildResult) -> None:
        progress.advance(result.request.variant.config)

    return build(requests, context.store, jobs=context.options.jobs, on_result=on_result)
