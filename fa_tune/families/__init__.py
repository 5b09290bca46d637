"""Kernel families: lookup by name, by config and by how a short form looks.

Adding one is a line in `_FAMILIES` and the files that docs/architecture.md lists.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fa_tune import operations
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Rejected, Variant
from fa_tune.core.workload import BACKWARD, EXACT, FAST, FORWARD, DType, Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.decode.family import DecodeFamily
from fa_tune.families.fields import d_v_of, is_kv_e4m3
from fa_tune.families.name_parser import is_whole
from fa_tune.families.plan import CallPlan, Grid, GridShape
from fa_tune.families.sm80.family import Sm80Family
from fa_tune.families.sm80_bwd.family import Sm80BackwardFamily
from fa_tune.families.sm90 import defaults as defaults_of_sm90
from fa_tune.families.sm90 import few_tiles
from fa_tune.families.sm90.family import Sm90Family
from fa_tune.families.sm90_bwd.family import Sm90BackwardFamily
from fa_tune.operations.base import CheckCase
from fa_tune.operations.traits import Traits

# Of those that suit a workload on a device, the last one's default is the default of the device.
_FAMILIES: dict[str, KernelFamily] = {
    family.name: family
    for family in (
        *(Sm80Family(), Sm90Family(), DecodeFamily()),
        *(Sm80BackwardFamily(), Sm90BackwardFamily()),
    )
}

USUAL_HEADS, USUAL_LENGTH = (16, 16, 16), 4096  # batch, and heads of Q and of K and V
NOT_STATED = 0  # in place of a head dimension that a short form leaves out


def get(name: str) -> KernelFamily:
    """The family of that name; raises InvalidConfig listing the known ones."""
    try:
        return _FAMILIES[name]
    except KeyError:
        raise InvalidConfig(f"unknown family {name!r}; known: {', '.join(_FAMILIES)}") from None


def family_names() -> tuple[str, ...]:
    """The names of all families."""
    return tuple(_FAMILIES)


def all_families() -> tuple[KernelFamily, ...]:
    """All families."""
    return tuple(_FAMILIES.values())


def runnable(
    limits: ArchLimits, operation: str = FORWARD, *, workloads: Sequence[Workload] = ()
) -> tuple[KernelFamily, ...]:
    """The families of an operation that run on such a device, the one to prefer there first; with
    `workloads` only those that suit one of them."""
    able = [
        family
        for family in all_families()
        if family.operation == operation
        and device_rejection(family, limits) is None
        and (not workloads or any(family.suits(w) for w in workloads))
    ]
    return tuple(reversed(able))


@lru_cache(maxsize=256)
def device_rejection(family: KernelFamily, limits: ArchLimits) -> Rejected | None:
    """Why no config of a family runs on such a device, or None."""
    return family.constraints(family.default_config(128, DType.FP16), limits)


# From a config ------------------------------------------------------------------------------


def of(config: Config) -> KernelFamily:
    """The family that a config belongs to; raises TypeError for an object that is no config."""
    for family in all_families():
        if type(config) is family.config_class:
            return family
    raise TypeError(f"{type(config).__name__} is no family's config class")


def variant_of(family: KernelFamily, config: Config) -> Variant:
    """The variant that a family's config makes."""
    return Variant(family.name, str(config))


def variant(config: Config) -> Variant:
    """The variant that a config makes."""
    return variant_of(of(config), config)


def constraints(config: Config, limits: ArchLimits) -> Rejected | None:
    """The first reason why a config cannot run on such a device, or None."""
    return of(config).constraints(config, limits)


def defaults(
    d_head: int, dtype: DType, limits: ArchLimits, operation: str = FORWARD, *, d_head_v: int = 0
) -> list[Config]:
    """Default configs for workloads of many heads, queries and keys, training with a causal mask;
    see `defaults_for`.  `d_head_v` 0: as `d_head`."""
    sizes = (*USUAL_HEADS, USUAL_LENGTH, USUAL_LENGTH, d_head, dtype)
    workload = Workload(*sizes, causal=operation == BACKWARD, op=operation, d_head_v=d_head_v)
    return defaults_for(workload, limits)


def defaults_for(workload: Workload, limits: ArchLimits) -> list[Config]:
    """The default config of each family that suits a workload, if it runs on such a device.  The
    first is the device's default: what a user without tuning results should run there."""
    able = runnable(limits, workload.op, workloads=(workload,))
    if len(able) > 1 and _outruns_decode(able[1], workload, limits):
        able = (able[1], able[0], *able[2:])
    configs = [f.default_for(workload, limits) for f in able]
    if workload.accuracy == EXACT:
        configs = [c.as_exact() for c in configs]
    return [c for c in configs if fits(c, workload) and constraints(c, limits) is None]


def _outruns_decode(family: KernelFamily, workload: Workload, limits: ArchLimits) -> bool:
    if family.name != Sm90Family.name:
        return False
    modules = (few_tiles, defaults_of_sm90)
    return any(module.outrun_decode(workload, limits.multiprocessors) for module in modules)


def default_for(family: KernelFamily, workload: Workload) -> Config:
    """A family's default config for a workload's heads and dtype."""
    return family.default_config(workload.d_head, workload.dtype, d_head_v=workload.d_head_v)


def blocks(config: Config) -> tuple[int, int]:
    """(query rows, key rows) of a tile, for the FLOP model and for verification, whose lengths are
    whole tiles, several of them, and parts."""
    return config.B_r, config.B_c


def is_for_decode_shapes(config: Config) -> bool:
    """Whether a config is for few rows that share a head of K and V, and so for caches."""
    return bool(_plain_plan(config).plan.decode_shape)


def grid_shape(config: Config, grid: tuple[int, int, int]) -> GridShape | None:
    """The part of a workload that the grid of the kernel known to reports tells; None where it
    tells nothing, as with a persistent grid."""
    launch = _plain_plan(config).launches[0]
    return GridShape(*grid) if launch.grid is Grid.BLOCKS_HEADS_BATCH else None


def threads(config: Config) -> int | None:
    """The threads of a block of the kernel known to reports; None where a call is of several."""
    launches = _plain_plan(config).launches
    return launches[0].threads if len(launches) == 1 else None


def _plain_plan(config: Config) -> CallPlan:
    return of(config).plan(config, str(Traits()), "sm_80")


def kind_of(config: Config) -> tuple[DType, int, int, str]:
    """What a config is for: dtype, head dimension of Q and K, and that of V, and the operation."""
    return config.dtype, config.d_head, d_v_of(config), of(config).operation


def fits(config: Config, workload: Workload) -> bool:
    """Whether a config is for a workload's operation, dtypes, head dimensions and accuracy."""
    kind = (workload.dtype, workload.d_head, workload.d_v, workload.op)
    accurate = config.exact or workload.accuracy == FAST
    return kind_of(config) == kind and is_kv_e4m3(config) == workload.kv_e4m3 and accurate


def carries_over(
    variant: Variant, measured: Workload, requested: Workload, limits: ArchLimits | None = None
) -> bool:
    """Whether how fast a variant was on one workload tells how fast it is on the other, whose sizes
    are not far from it, on the same device; also of a variant whose family is not known here, but
    of none that its family can no longer read, which nothing runs."""
    family = _FAMILIES.get(variant.family)
    if family is None:
        return True
    try:
        config = config_of(variant)
    except InvalidConfig:
        return False
    return family.carries_over(config, measured, requested, limits)


def worth_trying(configs: Sequence[Config], workload: Workload) -> list[Config]:
    """Configs that are for a workload's dtype and head dimensions and suit it; if none of them
    suits it, all that are for it."""
    fitting = [c for c in configs if fits(c, workload)]
    return [c for c in fitting if of(c).suits(workload, c)] or fitting


# From text ----------------------------------------------------------------------------------


def config_of(variant: Variant) -> Config:
    """The config of a variant, each text parsed once; raises InvalidConfig."""
    return _parsed(variant, get(variant.family))


@lru_cache(maxsize=1 << 16)
def _parsed(variant: Variant, family: KernelFamily) -> Config:  # another family: another parse
    config = family.parse(variant.config, d_head=NOT_STATED)
    if config.d_head == NOT_STATED:
        raise InvalidConfig(f'no head dimension in "{variant.config[:100]}"')
    return config


def is_config(text: str) -> bool:
    """Whether a text is meant as one config, by short form or kernel name, not as a set."""
    return "(" in text or "{" in text


def parse(text: str, *, d_head: int = 128) -> Config:
    """The config that a short form or kernel name is, whichever family it is of.

    Nothing else may stand in the text, as in a row of a table.  Raises InvalidConfig: what its
    family says of it, or, if it looks like no family's, how each family's configs are written.
    """
    meant = [f for f in all_families() if f.recognises(text)]
    found, errors = [], []
    for family in sorted(meant, key=lambda f: not text.lstrip().startswith(f.name)):
        try:
            found.append(family.parse(text, d_head=d_head))
        except InvalidConfig as error:
            errors.append(error)  # that of the family that is named first
    shown = " ".join(text.split())
    shown = shown if len(shown) <= 100 else shown[:99] + "…"
    if len(found) == 1:
        if "{" not in text and not is_whole(text):
            raise InvalidConfig(f'more than a config in "{shown}"; give the config alone')
        return found[0]
    if found:
        raise InvalidConfig(f'more than one config in "{shown}"; give one')
    if errors:
        raise errors[0]
    examples = " or ".join(f"{f.example!r} ({f.name})" for f in all_families())
    raise InvalidConfig(f'no config in "{shown}"; write it like {examples}')


def verification_cases(
    kernel: Variant, traits: str, *, thorough: bool = False
) -> tuple[CheckCase, ...]:
    """What a kernel is verified on, compiled with these traits; `thorough`: more of it."""
    family, config = get(kernel.family), config_of(kernel)
    cases = operations.get(family.operation).verification_cases(
        *(blocks(config), config.d_head, config.dtype, Traits.parse(traits)),
        d_head_v=d_v_of(config),
        thorough=thorough,
    )
    e4m3 = is_kv_e4m3(config)
    return (
        *(replace(c, workload=replace(c.workload, kv_e4m3=e4m3)) for c in cases),
        *(CheckCase(workload) for workload in family.extra_verification(config, traits)),
    )


def canonical(recorded: Variant) -> Variant:
    """The variant as its family writes it today, whose words may have been others once; as it is
    if the family is unknown or can no longer write it."""
    family = _FAMILIES.get(recorded.family)
    return recorded if family is None else _canonical(recorded, family)


@lru_cache(maxsize=1 << 16)
def _canonical(recorded: Variant, family: KernelFamily) -> Variant:
    try:
        return variant_of(family, _parsed(recorded, family))
    except InvalidConfig:
        return recorded


def states_d_head(text: str) -> bool:
    """Whether a text says the head dimension of its config, or leaves it to the caller."""
    return bool(parse(text, d_head=NOT_STATED).d_head != NOT_STATED)


def named_configs(
    key: str,
    chosen: Sequence[KernelFamily],
    *,
    dtypes: Sequence[DType] | None = None,
    d_head: int = 128,
    d_head_v: int = 0,
) -> list[Config]:
    """The set that `key` names in every family that has one of that name.

    Raises InvalidConfig if none of `chosen` has: the family's own words if it is only one,
    else what each has.
    """
    configs: list[Config] = []
    errors: list[InvalidConfig] = []
    for family in chosen:
        try:
            found = family.configs(key, dtypes=dtypes, d_head=d_head, d_head_v=d_head_v)
            configs += [c for c in found if d_v_of(c) == (d_head_v or c.d_head)]
        except InvalidConfig as error:
            errors.append(error)
    if len(errors) < len(chosen):
        return configs
    if len(errors) == 1:
        raise errors[0]
    allowed = "; ".join(f"{f.name}: {f.set_keys}" for f in chosen)
    names = {name for f in chosen for name in re.findall(r"[a-z][a-z0-9-]+(?=,)", f.set_keys)}
    near = difflib.get_close_matches(key, sorted(names), n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidConfig(
        f"unknown kernel set {key!r}; allowed: {allowed}; or one config's short form{hint}"
    )
