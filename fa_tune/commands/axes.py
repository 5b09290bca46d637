"""Axes as `--axis B_r=64,128` gives them, expanded around a config."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fa_tune.errors import InvalidConfig
from fa_tune.families import get
from fa_tune.families.sm80_sets import select_configs
from fa_tune.families.space import expand, read_value
from fa_tune.model import DType
from fa_tune.pipeline.context import FAMILY

if TYPE_CHECKING:
    from fa_tune.families.sm80 import FlashForwardKernelConfig as Config

MOST_CONFIGS = 1_000_000


def expanded(
    axes: Sequence[str], kernels: str, dtypes: Sequence[DType], d_heads: Sequence[int]
) -> list[Config]:
    """Every combination of the axes' values.

    The other fields are those of the config that `kernels` names, or else of the family's
    default config for every dtype and d_head.  Raises InvalidConfig, or click.UsageError for
    an axis that is no `FIELD=values`.
    """
    if "(" in kernels or "{" in kernels:
        bases = select_configs(kernels)
    else:
        family = get(FAMILY)
        bases = [family.default_config(d_head, dtype) for dtype in dtypes for d_head in d_heads]
    config_class = type(bases[0])
    values: dict[str, Sequence[Any]] = {}
    for text in axes:
        name, equals, listed = text.partition("=")
        name = name.strip()
        if not equals or not name or not listed.strip():
            raise click.UsageError(f"--axis {text!r}: write it like B_r=64,128")
        if name in values:
            raise click.UsageError(f"--axis {name} is given twice; name all values in one")
        words = [word.strip() for word in listed.split(",")]
        # A name that is no field is refused below, with the nearest one.
        values[name] = [read_value(config_class, name, word) for word in words]
    size = len(bases) * math.prod(len(v) for v in values.values())
    if size > MOST_CONFIGS:
        raise InvalidConfig(f"the axes span {size:,} configs; at most {MOST_CONFIGS:,} are listed")
    configs = [config for base in bases for config in expand(config_class, _as_axes(base) | values)]
    return list(dict.fromkeys(configs))


def _as_axes(config: Config) -> dict[str, Sequence[Any]]:
    """The axes that span nothing but this config."""
    return {f.name: (getattr(config, f.name),) for f in dataclasses.fields(config)}
