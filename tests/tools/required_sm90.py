"""What of the sm90 family has to compile, and a few of its variants that together take every
legal pair of choices: knobs, d_head, type and traits.

The values come from the declarations and the sets: a knob that is added takes part by itself.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType
from fa_tune.families.fields import python_type
from fa_tune.families.sm90.config import Sm90Config
from fa_tune.families.sm90.defaults import default_config
from fa_tune.families.sm90.sets import get_configs
from fa_tune.operations.traits import Traits
from tests.tools.covering import TRAIT_AXES, Axes, Space, Value, covering_array

ARCH = "sm_90a"  # what the family compiles for
D_HEADS = (64, 80, 96, 112, 128, 192, 256)
# The set and the d_head of each group, as in tests/tools/required.py.
GROUPS = (*(("fast", d) for d in D_HEADS), ("prog", 64), ("prog", 128))
# Rows and columns of a tile: the smallest, ordinary ones, the widest that some config has
# registers for.  V of another head dimension than Q and K is covered by pairs of its own, PAIRS of
# tests/gpu/cases.py.  Of other numbers the values are found.
_NAMED: Axes = {"d_head": D_HEADS, "B_c": (16, 64, 80, 128, 176), "d_head_v": (0,)}


def required_builds() -> list[BuildRequest]:
    """Every variant of the groups, each once, without traits."""
    configs = {c for key, d_head in GROUPS for c in get_configs(key, d_head=d_head)}
    return [_request(config, Traits()) for config in sorted(configs)]


def code_path_builds(d_heads: tuple[int, ...] = D_HEADS) -> list[BuildRequest]:
    """The code-path sample."""
    return [_request(config, traits) for config, traits in code_path_sample(d_heads)]


def quick_builds() -> list[BuildRequest]:
    """A part of all builds: what runs without tuning, with the least and the most traits."""
    defaults = [default_config(d_head, dtype) for d_head in D_HEADS for dtype in DType]
    some = [_request(c, Traits.parse("plain")) for c in defaults if c.dtype is DType.FP16]
    some += [
        _request(c, Traits.parse("causal+ragged+lse")) for c in defaults if c.dtype is DType.BF16
    ]
    return some


def builds() -> list[BuildRequest]:
    """Every build that has to pass."""
    return list(dict.fromkeys([*quick_builds(), *required_builds(), *code_path_builds()]))


def _request(config: Sm90Config, traits: Traits) -> BuildRequest:
    return BuildRequest(families.variant_of(families.get("sm90"), config), str(traits), ARCH)


@cache
def axes(d_heads: tuple[int, ...]) -> Axes:
    """Every knob and trait with the values to cover."""
    found: dict[str, tuple[Value, ...]] = {}
    configs = [c for d in D_HEADS for c in get_configs("all", d_head=d)]
    for f in dataclasses.fields(Sm90Config):
        kind = python_type(f)
        if kind is bool:
            found[f.name] = (False, True)
        elif issubclass(kind, Enum):
            found[f.name] = tuple(kind)
        else:
            found[f.name] = _NAMED.get(f.name) or _values_of_number(f, configs)
    return {**found, "d_head": d_heads, **TRAIT_AXES}


def _values_of_number(
    f: dataclasses.Field[Any], configs: Sequence[Sm90Config]
) -> tuple[Value, ...]:
    """What the sets have of it, and the first few; those that nothing can have drop out."""
    known = {getattr(c, f.name) for c in configs}
    few = 2 if f.metadata["place"] == "number" else 4
    return tuple(sorted({*known, *range(1, few + 1)}))


# What takes registers is left away where it is not what a pair asks for: of points with many
# consumers or wide heads, which have hardly any to spare, too few would be legal otherwise.
_FOLLOWS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "min_ctas_per_sm": lambda c: 1,
    "pingpong": lambda c: c["mma_warpgroups"] > 1,
    "single_loop": lambda c: False,
    "rows_in_turn": lambda c: False,
    "adaptive_max": lambda c: False,
}


@cache
def code_path_sample(
    d_heads: tuple[int, ...] = D_HEADS,
) -> tuple[tuple[Sm90Config, Traits], ...]:
    """A covering array of strength two, and for values that it found no legal point for a config
    of the sets.  Always the same for the same axes."""
    limits = parse_arch(ARCH)
    space = Space(
        Sm90Config,
        axes(d_heads),
        lambda c: families.get("sm90").constraints(c, limits) is None,
        follows=_FOLLOWS,
        tries=300,
        candidates=12,
    )
    sample = list(covering_array(space))
    known = axes(d_heads)
    shipped = [
        c
        for d in d_heads
        for c in get_configs("fast", d_head=d)
        if all(value in known[name] for name, value in vars(c).items())
    ]
    for name, values in known.items():
        if name in TRAIT_AXES:
            continue
        for value in values:
            if all(getattr(c, name) != value for c, _ in sample):
                found = (c for c in shipped if getattr(c, name) == value)
                sample += [(c, Traits()) for c in itertools.islice(found, 1)]
    return tuple(sample)
