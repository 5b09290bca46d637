"""Which families take part, which configs a search is between, who competes beside them (the
defaults, and what the registry holds), and who takes their place in a replay that knows nothing
of them."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fa_tune import families
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Rejected, Variant
from fa_tune.core.options import KernelOptions
from fa_tune.core.workload import FORWARD, Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.former import former_defaults
from fa_tune.store.recordings import families_in
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import EntryKey
from fa_tune.tune.session import Machine, ProfilerSelection

RejectedVariants = tuple[tuple[Variant, Rejected], ...]


def choose_families(
    names: Sequence[str],
    limits: ArchLimits,
    selection: ProfilerSelection | None = None,
    *,
    workloads: Sequence[Workload] = (),
) -> tuple[KernelFamily, ...]:
    """The families of these names, whether they run on such a device or not; without names
    those of the workloads' operation that do, and that suit one of the workloads if there are any,
    the one to prefer first, and for a replay only those that were recorded.

    Raises InvalidConfig for an unknown name, NoUsableVariant if none is left.
    """
    if names:
        return tuple(families.get(name) for name in dict.fromkeys(names))
    chosen = families.runnable(limits, _operation(workloads), workloads=workloads)
    if selection is not None and selection.recordings:
        # Nothing else could be chosen, and compiling it would take its time for nothing.
        recorded = {name for found in selection.recordings for name in families_in(found)}
        chosen = tuple(f for f in chosen if f.name in recorded) or chosen
    if not chosen:
        raise NoUsableVariant(_no_family(limits, workloads))
    return chosen


def _no_family(limits: ArchLimits, workloads: Sequence[Workload]) -> str:
    """Why no family runs on a device, or suits any of these workloads there."""
    op = _operation(workloads)
    if not families.runnable(limits, op):
        own = [f for f in families.all_families() if f.operation == op]
        reasons = (families.device_rejection(f, limits) for f in own)
        said = "; ".join(why.reason for why in reasons if why is not None)
        what = "kernels" if op == FORWARD else f"{op} kernels"
        return f"no family of {what} runs on {limits.arch}: {said}"
    first = workloads[0]
    text = f"no family of kernels on {limits.arch} computes {first.key}"
    if not first.packed and families.runnable(limits, op, workloads=[replace(first, seq_len_q=1)]):
        return f"{text}; one does with few queries, as of --seq-lens 1 --seq-lens-kv N"
    used = ", ".join(f"--{name.replace('_', '-')}" for name in first.unusual)
    return f"{text}: these cannot all be combined: {used}"


def _operation(workloads: Sequence[Workload]) -> str:
    """That of workloads, all of which have one."""
    return next((workload.op for workload in workloads), FORWARD)


def workloads_for(options: KernelOptions, configs: Sequence[Config]) -> tuple[Workload, ...]:
    """The grid's workloads that some config is for; a single short form brings its own dtype
    and head dimensions."""
    grid = options.workloads
    if families.is_config(options.kernels):
        grid = grid.with_kind(*families.kind_of(configs[0]))
    return grid.workloads()


def workloads_of_kinds(options: KernelOptions, configs: Sequence[Config]) -> tuple[Workload, ...]:
    """The grid's workloads for the dtypes and head dimensions of these configs, whatever those of
    the grid are."""
    kinds = dict.fromkeys(families.kind_of(config) for config in configs)
    grids = [options.workloads.with_kind(*kind) for kind in kinds]
    return tuple(dict.fromkeys(workload for grid in grids for workload in grid.workloads()))


def prune_configs(
    configs: Sequence[Config], limits: ArchLimits
) -> tuple[list[Config], RejectedVariants]:
    """What can run on an architecture, and what cannot with its reason, each in its order."""
    kept: list[Config] = []
    rejected: list[tuple[Variant, Rejected]] = []
    for config in configs:
        if (why := families.constraints(config, limits)) is None:
            kept.append(config)
        else:
            rejected.append((families.variant(config), why))
    return kept, tuple(rejected)


def runnable(configs: Sequence[Config], machine: Machine) -> tuple[list[Config], RejectedVariants]:
    """`prune_configs`; raises NoUsableVariant if nothing is left."""
    kept, rejected = prune_configs(configs, machine.limits)
    if not kept:
        said = _why_none(configs, machine)
        none = (
            f"none of the {len(configs)} configs can" if len(configs) > 1 else "the config cannot"
        )
        raise NoUsableVariant(f"{none} run on {machine.arch}" + (f": {said}" if said else ""))
    return kept, rejected


def _why_none(configs: Sequence[Config], machine: Machine) -> str:
    """The first reason of each family: those of a set without configs of these heads tell theirs
    of their default."""
    first = {families.of(config): config for config in reversed(configs)}
    if len(configs) > 1:
        dtype, d_head, d_head_v, operation = families.kind_of(configs[0])
        for family in families.runnable(machine.limits, operation):
            default = family.default_config(d_head, dtype, d_head_v=d_head_v)
            first.setdefault(family, default)
    said: dict[str, list[str]] = {}
    for family, config in first.items():
        if (why := family.constraints(config, machine.limits)) is not None:
            said.setdefault(why.reason, []).append(family.name)
    if len(said) == 1:
        return next(iter(said))
    return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in said.items())


def as_recorded(config: Config, subjects: Collection[str]) -> Config:
    """A default, or what it was before, where only that is among the subjects of a recording."""
    known = (config, *former_defaults(families.of(config), config))
    return next((c for c in known if families.variant(c).key in subjects), config)


def default_keys(
    workload: Workload, limits: ArchLimits, recorded: Collection[str] = ()
) -> list[str]:
    """The subjects that run on a device without any tuning, the one to prefer first; of a
    recording with these subjects as `as_recorded`."""
    configs = families.defaults_for(workload, limits)
    return [families.variant(as_recorded(config, recorded)).key for config in configs]


@dataclass(frozen=True)
class Defaults:
    """The configs that run without any tuning: the device's own default, then those of the
    families `chosen` for a search.  `able` are the families that can be measured at all;
    `recorded` are the subjects of a replay, by workload."""

    limits: ArchLimits
    able: tuple[KernelFamily, ...]
    chosen: tuple[KernelFamily, ...]
    recorded: Mapping[str, Collection[str]] = field(default_factory=dict)

    def of(self, workload: Workload) -> list[Config]:
        """For one workload, the one to prefer first."""
        subjects = self.recorded.get(workload.key, ())
        configs = [as_recorded(c, subjects) for c in families.defaults_for(workload, self.limits)]
        best = next((c for c in configs if families.of(c) in self.able), None)
        return [c for c in configs if c is best or families.of(c) in self.chosen]

    def for_workloads(self, workloads: Sequence[Workload]) -> list[Config]:
        """For each of them: whatever set is searched, what is kept must not be slower than what
        runs without any search."""
        return list(dict.fromkeys(config for w in workloads for config in self.of(w)))

    def keys(self, workload: Workload) -> tuple[str, ...]:
        """The subjects of one workload's."""
        return tuple(families.variant(c).key for c in self.of(workload))


def recorded_configs(
    selection: ProfilerSelection, chosen: Sequence[KernelFamily], workloads: Sequence[Workload]
) -> list[Config]:
    """The configs of these families that the replayed recordings hold for any of these
    workloads, sorted by family and config; none where nothing is replayed."""
    by_name = {family.name: family for family in chosen}

    def configs() -> Iterator[tuple[str, Config]]:
        for variant in map(Variant.from_key, selection.recorded_for(workloads)):
            if variant.family in by_name:
                with contextlib.suppress(InvalidConfig):  # of another version, with other knobs
                    yield variant.family, families.config_of(variant)

    return [config for _, config in sorted(set(configs()))]


def incumbents(
    registry: Path, selection: ProfilerSelection, workloads: Sequence[Workload]
) -> list[Config]:
    """What the registry holds for these workloads by this method, of whichever family: a
    search of a smaller set must not replace it by something slower, so it competes.  Raises
    RegistryError."""
    known = registry_file.load(registry)
    device = selection.device
    found = []
    for workload in workloads:
        key = EntryKey(device.name, device.compute_capability, workload.key, selection.method)
        entry = known.get(key)
        if entry is not None:
            with contextlib.suppress(InvalidConfig):  # of another version, with other knobs
                found.append(families.config_of(entry.chosen))
    return found
