"""What has to compile, and for which architectures.

`required_builds` are the named sets at both head dimensions; `code_path_builds` are a few
variants that together take every pair of choices the kernels can make.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

from fa_tune import families
from fa_tune.arch import ArchLimits, parse_arch
from fa_tune.compile import BuildRequest
from fa_tune.families.sm80 import FlashForwardKernelConfig, constraints
from fa_tune.families.sm80_sets import get_kernel_configs
from fa_tune.families.traits import Traits
from fa_tune.model import DType

FULL_ARCHS = ("sm_80", "sm_90")
SAMPLE_ARCHS = ("sm_86", "sm_89", "sm_100", "sm_120")
# The set and the d_head of each group: all of `fast` and the ladder, and `tune` where it is used.
GROUPS = (("fast", 128), ("fast", 64), ("prog", 128), ("prog", 64), ("tune", 128))
ALL_D_HEADS = (64, 96, 128, 192, 256)
# The least shared memory per CTA of all architectures, so what fits there fits everywhere, and
# the first that has bulk tensor copies.
LEAST_ARCH, TURNS_ARCH = "sm_86", "sm_90"


def builds_for(arch: str) -> list[BuildRequest]:
    """Every build that an architecture has to pass."""
    required = required_builds(arch) if arch in FULL_ARCHS else []
    return list(dict.fromkeys(required + code_path_builds(arch)))


def required_builds(arch: str) -> list[BuildRequest]:
    """Every variant of the groups that can run on the architecture, each once, without traits."""
    configs = {c for key, d_head in GROUPS for c in get_kernel_configs(key, d_head=d_head)}
    limits = parse_arch(arch)
    return [
        _request(config, Traits(), arch)
        for config in sorted(configs)
        if constraints(config, limits) is None
    ]


def code_path_builds(arch: str, d_heads: tuple[int, ...] = (64, 128)) -> list[BuildRequest]:
    """The code-path sample, less what the architecture cannot run."""
    limits = parse_arch(arch)
    return [
        _request(config, traits, arch)
        for config, traits in code_path_sample(d_heads)
        if constraints(config, limits) is None
    ]


def _request(config: FlashForwardKernelConfig, traits: Traits, arch: str) -> BuildRequest:
    return BuildRequest(families.variant_of(families.get("sm80"), config), str(traits), arch)


Value = DType | int | bool
Axes = dict[str, tuple[Value, ...]]

# The values of the numbers that every config states.
_NUMBERS: Axes = {
    "dtype": (DType.FP16, DType.BF16),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
}
_MOST = 4  # later numbers that no set varies take 0 to this, as far as some config can have them

# Where warps take turns, other blocks, and what constraints leave of the other knobs.
_TURNS: Axes = {
    "B_r": (128, 192, 256),
    "B_c": (32, 64, 128),
    "n_warps": (8, 12),
    "async_copy": (True,),
    "eager_load_blocks": (True,),
    "swizzled": (True,),
    "Q_mma_load_K_tiles": (0, 1),
    "K_mma_load_K_tiles": (1,),
    "V_mma_load_K_tiles": (1,),
    "mma_double_buffer_loads": (False,),
    "interleaved_softmax": (False,),
    "ping_pong": (True,),
}


@cache
def axes(d_heads: tuple[int, ...]) -> Axes:
    """Every knob and trait with the values to cover, from the declarations of both: a field
    that is added to the config takes part without being named here."""
    found: Axes = {}
    for f in dataclasses.fields(FlashForwardKernelConfig):
        match f.metadata["place"]:
            case "flag":
                found[f.name] = (False, True)
            case "tiles":
                found[f.name] = (0, 2)
            case "number":
                found[f.name] = _values_of_number(f.name, f.default)
            case _:
                found[f.name] = d_heads if f.name == "d_head" else _NUMBERS[f.name]
    return found | {f.name: (False, True) for f in dataclasses.fields(Traits)}


def _values_of_number(name: str, default: int) -> tuple[Value, ...]:
    """The default and what `fast` has of it; where that is the same, some small numbers."""
    fast = {getattr(c, name) for d in ALL_D_HEADS for c in get_kernel_configs("fast", d_head=d)}
    found = sorted({default, *fast})
    if len(found) == 1:
        numbers = dict.fromkeys((default, *range(_MOST + 1)))
        found = [v for v in numbers if _is_legal_somewhere(name, v)]
    return tuple(found)


def _is_legal_somewhere(name: str, value: int) -> bool:
    """Whether the default config of some d_head can have it."""
    family = families.get("sm80")
    defaults = [family.default_config(d_head, DType.FP16) for d_head in ALL_D_HEADS]
    limits = parse_arch("sm_90")
    return any(
        constraints(dataclasses.replace(c, **{name: value}), limits) is None for c in defaults
    )


_CONFIG_FIELDS = tuple(f.name for f in dataclasses.fields(FlashForwardKernelConfig))
_CANDIDATES = 60  # tried per pick; more make the sample only a little smaller

Point = tuple[Value, ...]
Pair = tuple[tuple[str, Value], tuple[str, Value]]


@cache
def code_path_sample(
    d_heads: tuple[int, ...] = (64, 128),
) -> tuple[tuple[FlashForwardKernelConfig, Traits], ...]:
    """Two covering arrays of strength two: every legal pair of values of two axes is in the
    first, which runs everywhere, or, with ping_pong, in the second.

    Greedy, from a fixed seed, so always the same for the same axes.
    """
    whole = axes(d_heads)
    ordinary = whole | {"ping_pong": (False,)}
    in_turns = whole | _TURNS
    return (*_covering_array(ordinary, LEAST_ARCH), *_covering_array(in_turns, TURNS_ARCH))


def _covering_array(space: Axes, arch: str) -> list[tuple[FlashForwardKernelConfig, Traits]]:
    dice = random.Random(0)
    limits = parse_arch(arch)

    def complete(pair: Pair) -> Point | None:
        return _complete(space, pair, dice, limits)

    uncovered = {pair for pair in _all_pairs(space) if complete(pair) is not None}
    chosen: list[Point] = []
    while uncovered:
        first = min(uncovered, key=str)
        tries = (complete(first) for _ in range(_CANDIDATES))
        candidates = [point for point in tries if point is not None]
        if not candidates:
            raise ValueError(f"nothing completes {first} any more: more tries are needed")
        best = max(candidates, key=lambda point: len(uncovered & set(_pairs(space, point))))
        uncovered -= set(_pairs(space, best))
        chosen.append(best)
    return [_split(space, point) for point in chosen]


def _all_pairs(space: Axes) -> Iterator[Pair]:
    for (a, values_a), (b, values_b) in itertools.combinations(space.items(), 2):
        for value_a, value_b in itertools.product(values_a, values_b):
            yield (a, value_a), (b, value_b)


def _pairs(space: Axes, point: Point) -> Iterator[Pair]:
    return itertools.combinations(zip(space, point, strict=True), 2)


def _complete(space: Axes, pair: Pair, dice: random.Random, limits: ArchLimits) -> Point | None:
    """A random legal point with this pair in it; None when many tries find none."""
    fixed = dict(pair)
    for _ in range(200):
        point = tuple(
            fixed[name] if name in fixed else dice.choice(values) for name, values in space.items()
        )
        if constraints(_split(space, point)[0], limits) is None:
            return point
    return None


def _split(space: Axes, point: Point) -> tuple[FlashForwardKernelConfig, Traits]:
    values = dict(zip(space, point, strict=True))
    knobs: dict[str, Any] = {name: values.pop(name) for name in _CONFIG_FIELDS}
    traits = Traits(**{name: bool(value) for name, value in values.items()})
    return FlashForwardKernelConfig(**knobs), traits
