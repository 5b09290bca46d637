"""A few variants of the decode family that together take every legal pair of choices: knobs,
d_head, type and traits.

The values come from the declarations and the sets: a knob that is added takes part by itself.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import parse_arch
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.fields import python_type
from fa_tune.operations.traits import Traits
from tests.tools.covering import TRAIT_AXES, Axes, Space, Value, covering_array

# The smallest, and ordinary ones.
_NAMED: Axes = {
    "d_head": (64, 80, 128, 192, 256),
    "d_head_v": (0, 128),
    "B_r": (16, 32, 64),
    "B_c": (16, 64, 128, 256),
    "n_warps": (1, 2, 4, 8),
    "row_warps": (1, 2, 4),
    "tile_keys": (0, 64),
}


def code_path_builds(arch: str) -> list[BuildRequest]:
    """The code-path sample of what the architecture can run."""
    family = families.get("decode")
    return [
        BuildRequest(families.variant_of(family, config), str(traits), arch)
        for config, traits in code_path_sample(arch)
    ]


@cache
def code_path_sample(arch: str) -> tuple[tuple[DecodeConfig, Traits], ...]:
    """A covering array of strength two, always the same for the same axes."""
    limits = parse_arch(arch)
    space = Space(
        DecodeConfig,
        axes(),
        lambda c: constraints(c, limits) is None,
        follows={"sectors": lambda values: False},  # few rows have any
        tries=600,
        candidates=120,
    )
    return tuple(covering_array(space))


@cache
def axes() -> Axes:
    """Every knob and trait with the values to cover."""
    found: dict[str, tuple[Value, ...]] = {}
    for f in dataclasses.fields(DecodeConfig):
        kind = python_type(f)
        if kind is bool:
            found[f.name] = (False, True)
        elif f.metadata["place"] == "choice" or f.name == "dtype":
            found[f.name] = tuple(kind)
        else:
            found[f.name] = _NAMED.get(f.name) or _values_of_number(f)
    return {**found, **TRAIT_AXES}


def _values_of_number(f: dataclasses.Field[Any]) -> tuple[Value, ...]:
    """What the default and `fast` have of it, and one more than the default."""
    fast = families.get("decode").configs("fast", d_head=128)
    return tuple(sorted({f.default, f.default + 1, *(getattr(c, f.name) for c in fast)}))
