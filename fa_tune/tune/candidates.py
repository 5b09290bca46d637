"""Which families take part, who competes beside the set (the defaults, and what the registry
holds), and who takes its place in a replay that knows nothing of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune import families
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import DType, Variant, Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.profile.replay import ReplayProfiler
from fa_tune.store.recordings import families_in
from fa_tune.tune.profilers import Measured


def choose_families(
    names: Sequence[str], limits: ArchLimits, measured: Measured | None = None
) -> tuple[KernelFamily, ...]:
    """The families of these names, whether they run on such a device or not; without names
    those that do, the one to prefer first, and for a replay only those that were recorded.

    Raises InvalidConfig for an unknown name, NoUsableVariant if none is left.
    """
    if names:
        return tuple(families.get(name) for name in dict.fromkeys(names))
    chosen = families.runnable(limits)
    if measured is not None and isinstance(measured.profiler, ReplayProfiler):
        # Nothing else could be chosen, and compiling it would take its time for nothing.
        recorded = {name for one in measured.recordings for name in families_in(one)}
        chosen = tuple(f for f in chosen if f.name in recorded) or chosen
    if not chosen:
        reasons = (f.device_rejection(limits) for f in families.all_families())
        told = "; ".join(why.reason for why in reasons if why is not None)
        raise NoUsableVariant(f"no family of kernels runs on {limits.arch}: {told}")
    return chosen


@dataclass(frozen=True)
class Defaults:
    """The configs that run without any tuning: the device's own default, then those of the
    families `chosen` for a search.  `able` are the families that can be measured at all."""

    limits: ArchLimits
    able: tuple[KernelFamily, ...]
    chosen: tuple[KernelFamily, ...]

    def of(self, d_head: int, dtype: DType) -> list[Config]:
        """For one kind of workload, the one to prefer first."""
        configs = families.defaults(d_head, dtype, self.limits)
        best = next((c for c in configs if families.of(c) in self.able), None)
        return [c for c in configs if c is best or families.of(c) in self.chosen]

    def for_configs(self, configs: Sequence[Config]) -> list[Config]:
        """For each dtype and d_head in a set: whatever set is searched, what is kept must not
        be slower than what runs without any search."""
        kinds = dict.fromkeys((c.dtype, c.d_head) for c in configs)
        return [config for dtype, d_head in kinds for config in self.of(d_head, dtype)]

    def keys(self, workload: Workload) -> tuple[str, ...]:
        """The subjects of one workload's."""
        return tuple(families.variant(c).key for c in self.of(workload.d_head, workload.dtype))


def recorded_configs(
    measured: Measured, chosen: Sequence[KernelFamily], workloads: Sequence[Workload]
) -> list[Config]:
    """The configs of these families that the replayed recordings hold for any of these
    workloads, sorted by family and config; none where nothing is replayed."""
    keys = {workload.key for workload in workloads}
    subjects = {a.subject for r in measured.recordings for a in r.attempts if a.workload in keys}
    by_name = {family.name: family for family in chosen}

    def configs() -> Iterator[tuple[str, Config]]:
        for variant in map(Variant.from_key, subjects):
            if variant.family in by_name:
                with contextlib.suppress(InvalidConfig):  # of another version, with other knobs
                    yield variant.family, families.config_of(variant)

    return [config for _, config in sorted(set(configs()))]


def incumbents(registry: Path, measured: Measured, workloads: Sequence[Workload]) -> list[Config]:
    """What the registry holds for these workloads by this method, of whichever family: a
    search of a smaller set must not replace it by something slower, so it competes."""
    from fa_tune.store.registry import file as store
    from fa_tune.store.registry.schema import EntryKey

    known = store.load(registry)
    device = measured.device
    found = []
    for workload in workloads:
        key = EntryKey(
            device.name, device.compute_capability, workload.key, measured.profiler.method
        )
        entry = known.get(key)
        if entry is not None:
            with contextlib.suppress(InvalidConfig):  # of another version, with other knobs
                found.append(families.config_of(entry.chosen))
    return found
