"""Axes as `--axis B_r=64,128` gives them, expanded around a config."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from fa_tune.errors import InvalidConfig
from fa_tune.families import get
from fa_tune.families.config_fields import python_type
from fa_tune.model import DType
from fa_tune.pipeline.context import FAMILY
from fa_tune.search.sets import select_configs
from fa_tune.search.space import expand

if TYPE_CHECKING:
    from fa_tune.families.sm80 import FlashForwardKernelConfig as Config

MOST_CONFIGS = 1_000_000
MOST_VALUE = 65536
_FLAGS = {"true": True, "1": True, "on": True, "false": False, "0": False, "off": False}


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
    kinds = {f.name: python_type(f) for f in dataclasses.fields(bases[0])}
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
        values[name] = [_value(name, word, kinds.get(name, str)) for word in words]
    size = len(bases) * math.prod(len(v) for v in values.values())
    if size > MOST_CONFIGS:
        raise InvalidConfig(f"the axes span {size:,} configs; at most {MOST_CONFIGS:,} are listed")
    configs = [
        config
        for base in bases
        for config in expand({n: (getattr(base, n),) for n in kinds} | values)
    ]
    return list(dict.fromkeys(configs))


def _value(name: str, word: str, kind: type) -> Any:
    if kind is bool:
        if word.lower() not in _FLAGS:
            raise InvalidConfig(f"axis {name}: {word!r} is neither true nor false")
        return _FLAGS[word.lower()]
    if kind is DType:
        return DType.from_string(word)
    if kind is int:
        if not word.isascii() or not word.isdigit() or len(word) > 9 or int(word) > MOST_VALUE:
            raise InvalidConfig(
                f"axis {name}: {word[:40]!r} is not a whole number from 0 to {MOST_VALUE}"
            )
        return int(word)
    return word
