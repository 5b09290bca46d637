"""The families and configs that a search is asked for, and what of them a replay can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fa_tune import families
from fa_tune.core.options import DEFAULT_KERNELS, Progress, SearchOptions
from fa_tune.core.workload import Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.selection import choose_configs, note_of_d_head
from fa_tune.tune.candidates import choose_families, recorded_configs, runnable
from fa_tune.tune.session import Machine, ProfilerSelection


@dataclass(frozen=True)
class Asked:
    """The configs to choose among, and the families whose defaults compete with them."""

    families: tuple[KernelFamily, ...]
    configs: Sequence[Config]


def asked_for(
    options: SearchOptions,
    machine: Machine,
    progress: Progress,
    configs: Sequence[Config] | None = None,
) -> Asked:
    """`configs`, or those of the set or the short form that the options name.  Raises InvalidConfig
    for a set that nobody knows and NoUsableVariant where none can run on the machine."""
    chosen = choose_families(
        options.families, machine.limits, workloads=options.workloads.workloads()
    )
    if configs is None:
        configs = _set_of(options, chosen, named=bool(options.families))
    if families.is_config(options.kernels) and (
        note := note_of_d_head(options.kernels, configs[0])
    ):
        progress.note(note)
    runnable(configs, machine)  # told before what is recorded of others
    return Asked(chosen, configs)


def of_able_families(
    asked: Asked, options: SearchOptions, able: tuple[KernelFamily, ...], progress: Progress
) -> Asked:
    """Without the families of which nothing can be measured, unless the options name families or
    a config."""
    if families.is_config(options.kernels):
        return replace(asked, families=(families.of(asked.configs[0]),))
    if options.families or able == asked.families:
        return asked
    out = ", ".join(f.name for f in asked.families if f not in able)
    progress.note(f"no recording holds kernels of {out}: left out")
    configs = [c for c in asked.configs if families.of(c) in able]
    return Asked(able, configs or _set_of(options, able))


def of_recorded_configs(
    asked: Asked, selection: ProfilerSelection, wanted: Sequence[Workload], progress: Progress
) -> Asked:
    """For the default set: the recorded configs where no recording holds any of the set, else
    those of the set whose family, dtype and head dimension some recording holds.  As it is where
    nothing is replayed."""
    held = recorded_configs(selection, asked.families, wanted)
    if not held:
        return asked
    if set(held) & set(asked.configs):
        return replace(asked, configs=_of_recorded_kinds(asked.configs, held, progress))
    progress.note(
        f"no recording holds the set {DEFAULT_KERNELS!r}: choosing among the {len(held)} configs "
        "that are recorded"
    )
    return replace(asked, configs=held)


def _set_of(
    options: SearchOptions, chosen: Sequence[KernelFamily], *, named: bool = False
) -> list[Config]:
    grid = options.workloads
    return choose_configs(
        options.kernels, grid.dtypes, grid.d_heads, chosen, named=named, d_head_v=grid.d_head_v
    )


def _of_recorded_kinds(
    configs: Sequence[Config], held: Sequence[Config], progress: Progress
) -> list[Config]:
    """The configs without those families, dtypes and d_heads of which no recording holds any of
    them: nothing could be said of these, and compiling them would take its time for nothing."""

    def kind(config: Config) -> str:
        dtype, d_head, d_v = families.kind_of(config)
        heads = f"d_head {d_head}" if d_v == d_head else f"d_head {d_head}, d_head_v {d_v}"
        return f"{dtype.name} {heads} of {families.of(config).name}"

    recorded = {kind(config) for config in set(configs) & set(held)}
    for missing in dict.fromkeys(k for k in map(kind, configs) if k not in recorded):
        progress.note(f"no recording holds kernels for {missing}: left out")
    return [config for config in configs if kind(config) in recorded]
