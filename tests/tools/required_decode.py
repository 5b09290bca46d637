"""A few variants of the decode family that together take every legal pair of choices: knobs,
d_head, type and traits.

The values come from the declarations and the sets: a knob that is added takes part by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import parse_arch
from fa_tune.families.decode.config import Combine, DecodeConfig
from fa_tune.families.decode.constraints import constraints
from fa_tune.families.fields import python_type
from fa_tune.families.plan import TileOrder
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


def _of_shares(name: str, value: Value) -> Callable[[Mapping[str, Value]], Value]:
    """What a knob of CTAs that share tiles is: this for all others."""
    return lambda values: value if values["cluster"] != 1 or values["order"] else values[name]


# Few rows have sectors, and few points an order; it and clusters leave no other knobs of shares.
_FOLLOWS: Mapping[str, Callable[[Mapping[str, Value]], Value]] = {
    "sectors": lambda values: False,
    "order": lambda values: TileOrder.SHARES,
    "min_blocks": _of_shares("min_blocks", 1),
    "aligned": _of_shares("aligned", False),
    "combine": _of_shares("combine", Combine.LAST),
    "tile_keys": _of_shares("tile_keys", 0),
    "by_rows": _of_shares("by_rows", False),
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
        follows=_FOLLOWS,
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
