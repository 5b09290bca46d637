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
from fa_tune.arch import parse_arch
from fa_tune.compile import BuildRequest
from fa_tune.families.sm80 import FlashForwardKernelConfig, constraints
from fa_tune.families.sm80_sets import get_kernel_configs
from fa_tune.families.traits import Traits
from fa_tune.model import DType

FULL_ARCHS = ("sm_80", "sm_90")
SAMPLE_ARCHS = ("sm_86", "sm_89", "sm_100", "sm_120")
SETS = ("tune", "prog", "prog-all")
D_HEADS = (128, 64)
ALL_D_HEADS = (64, 96, 128, 192, 256)


def builds_for(arch: str) -> list[BuildRequest]:
    """Every build that an architecture has to pass."""
    required = required_builds(arch) if arch in FULL_ARCHS else []
    return list(dict.fromkeys(required + code_path_builds(arch)))


def required_builds(arch: str) -> list[BuildRequest]:
    """Every variant of every named set, each once, without traits."""
    configs = {c for key in SETS for d in D_HEADS for c in get_kernel_configs(key, d_head=d)}
    return [_request(config, Traits(), arch) for config in sorted(configs)]


def code_path_builds(arch: str, d_heads: tuple[int, ...] = (64, 128)) -> list[BuildRequest]:
    """The code-path sample, less what does not fit the architecture's shared memory."""
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
_MOST = 4  # later numbers take 0 to this, as far as some config can have them


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
                numbers = dict.fromkeys((f.default, *range(_MOST + 1)))
                found[f.name] = tuple(v for v in numbers if _is_legal_somewhere(f.name, v))
            case _:
                found[f.name] = d_heads if f.name == "d_head" else _NUMBERS[f.name]
    return found | {f.name: (False, True) for f in dataclasses.fields(Traits)}


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
    """A covering array of strength two: every legal pair of values of two axes is in it.

    Greedy, from a fixed seed, so always the same for the same axes.
    """
    dice = random.Random(0)
    space = axes(d_heads)
    uncovered = {pair for pair in _all_pairs(space) if _complete(space, pair, dice) is not None}
    chosen: list[Point] = []
    while uncovered:
        first = min(uncovered, key=str)
        tries = (_complete(space, first, dice) for _ in range(_CANDIDATES))
        candidates = [point for point in tries if point is not None]
        best = max(candidates, key=lambda point: len(uncovered & set(_pairs(space, point))))
        uncovered -= set(_pairs(space, best))
        chosen.append(best)
    return tuple(_split(space, point) for point in chosen)


def _all_pairs(space: Axes) -> Iterator[Pair]:
    for (a, values_a), (b, values_b) in itertools.combinations(space.items(), 2):
        for value_a, value_b in itertools.product(values_a, values_b):
            yield (a, value_a), (b, value_b)


def _pairs(space: Axes, point: Point) -> Iterator[Pair]:
    return itertools.combinations(zip(space, point, strict=True), 2)


def _complete(space: Axes, pair: Pair, dice: random.Random) -> Point | None:
    """A random legal point with this pair in it; None when many tries find none."""
    fixed = dict(pair)
    for _ in range(200):
        point = tuple(
            fixed[name] if name in fixed else dice.choice(values) for name, values in space.items()
        )
        if constraints(_split(space, point)[0], parse_arch("sm_80")) is None:
            return point
    return None


def _split(space: Axes, point: Point) -> tuple[FlashForwardKernelConfig, Traits]:
    values = dict(zip(space, point, strict=True))
    knobs: dict[str, Any] = {name: values.pop(name) for name in _CONFIG_FIELDS}
    traits = Traits(**{name: bool(value) for name, value in values.items()})
    return FlashForwardKernelConfig(**knobs), traits
