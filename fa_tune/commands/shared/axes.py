"""The configs that are meant: of a set, or of axes as `--axis B_r=64,128` gives them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import click

from fa_tune import families
from fa_tune.core import devices
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.options import MachineOptions, SearchOptions
from fa_tune.core.workload import EXACT, Workload
from fa_tune.families.axes import check_fields, expand, read_value
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.selection import choose_configs, stated_config
from fa_tune.tune.candidates import choose_families

MAX_CONFIGS = 1_000_000


def configs_of(options: SearchOptions, workloads: Sequence[Workload] = ()) -> list[Config]:
    """The configs of the set, or every combination of the axes' values, of the families that are
    named, else of those that run on the device and suit one of the workloads if there are any.

    What the axes leave open is as in the config that `kernels` names, or else in the default
    config for every dtype and d_head, of each family that has all the fields.  Raises
    InvalidConfig, or click.UsageError for an axis that is no `FIELD=values`.
    """
    grid, kernels = options.workloads, options.kernels
    limits = device_limits(options.machine)
    chosen = choose_families(options.families, limits, workloads=workloads)
    if not options.axes:
        named = bool(options.families)
        return choose_configs(
            kernels, grid.dtypes, grid.head_dims, chosen, named=named, accuracy=grid.accuracy
        )
    words = _words(options.axes)
    if families.is_config(kernels):
        bases = [stated_config(kernels, grid.d_heads)]
    else:
        having = [f for f in chosen if words.keys() <= {*_fields(f)}]
        if not having:
            raise _of_no_family(words, chosen)
        bases = [
            f.default_config(d_head, dtype, d_head_v=d_head_v)
            for f in having
            for dtype in grid.dtypes
            for d_head, d_head_v in grid.head_dims
        ]
        if grid.accuracy == EXACT:
            bases = [base.as_exact() for base in bases]
    spaces: list[tuple[type[Any], dict[str, Sequence[Any]]]] = []
    for base in bases:
        kind = type(base)
        # A name that is no field is refused by `expand`, with the nearest one.
        values = {n: [read_value(kind, n, word) for word in listed] for n, listed in words.items()}
        own = {f.name: [getattr(base, f.name)] for f in dataclasses.fields(base)}
        spaces.append((kind, {**own, **values}))
    size = sum(math.prod(len(v) for v in space.values()) for _, space in spaces)
    if size > MAX_CONFIGS:
        raise InvalidConfig(f"the axes span {size:,} configs; at most {MAX_CONFIGS:,} are listed")
    return list(dict.fromkeys(c for kind, space in spaces for c in expand(kind, space)))


def device_limits(machine: MachineOptions) -> ArchLimits:
    """Limits of the architecture requested, of this machine's GPU, or of the default one."""
    return devices.limits_for(machine.arch, devices.find_device(machine.device))


def _words(axes: Sequence[str]) -> dict[str, list[str]]:
    words: dict[str, list[str]] = {}
    for text in axes:
        name, equals, listed = text.partition("=")
        name = name.strip()
        if not equals or not name or not listed.strip():
            raise click.UsageError(f"--axis {text!r}: write it like B_r=64,128")
        if name in words:
            raise click.UsageError(f"--axis {name} is given twice; name all values in one")
        words[name] = [word.strip() for word in listed.split(",")]
    return words


def _of_no_family(words: Iterable[str], chosen: Sequence[KernelFamily]) -> InvalidConfig:
    """Axes that no family has together, of which each has some family; raises InvalidConfig for
    one that none has."""
    check_fields(words, list(dict.fromkeys(name for f in chosen for name in _fields(f))))
    having = (
        f"{name} of {', '.join(f.name for f in chosen if name in _fields(f))}" for name in words
    )
    return InvalidConfig(f"no family has all of these fields: {'; '.join(having)}")


def _fields(family: KernelFamily) -> list[str]:
    return [field.name for field in dataclasses.fields(family.config_class)]
