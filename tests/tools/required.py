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


def builds_for(arch: str) -> list[BuildRequest]:
    """Every build that an architecture has to pass."""
    required = required_builds(arch) if arch in FULL_ARCHS else []
    return list(dict.fromkeys(required + code_path_builds(arch)))


def required_builds(arch: str) -> list[BuildRequest]:
    """Every variant of every named set, each once, without traits."""
    configs = {c for key in SETS for d in D_HEADS for c in get_kernel_configs(key, d_head=d)}
    return [_request(config, Traits(), arch) for config in sorted(configs)]


def code_path_builds(arch: str) -> list[BuildRequest]:
    """The code-path sample, less what does not fit the architecture's shared memory."""
    limits = parse_arch(arch)
    return [
        _request(config, traits, arch)
        for config, traits in code_path_sample()
        if constraints(config, limits) is None
    ]


def _request(config: FlashForwardKernelConfig, traits: Traits, arch: str) -> BuildRequest:
    return BuildRequest(families.variant_of(families.get("sm80"), config), str(traits), arch)


_AXES: dict[str, tuple[DType | int | bool, ...]] = {
    "dtype": (DType.FP16, DType.BF16),
    "d_head": (64, 128),
    "B_r": (64, 128),
    "B_c": (32, 64, 128),
    "n_warps": (4, 8),
    "async_copy": (False, True),
    "eager_load_blocks": (False, True),
    "swizzled": (False, True),
    "Q_mma_load_K_tiles": (0, 2),
    "K_mma_load_K_tiles": (0, 2),
    "V_mma_load_K_tiles": (0, 2),
    "mma_double_buffer_loads": (False, True),
    "optimized_softmax": (False, True),
    "causal": (False, True),
    "ragged": (False, True),
    "lse": (False, True),
}
_CONFIG_FIELDS = tuple(f.name for f in dataclasses.fields(FlashForwardKernelConfig))
_CANDIDATES = 60  # tried per pick; more make the sample only a little smaller

Point = tuple[DType | int | bool, ...]
Pair = tuple[tuple[str, DType | int | bool], tuple[str, DType | int | bool]]


@cache
def code_path_sample() -> tuple[tuple[FlashForwardKernelConfig, Traits], ...]:
    """A covering array of strength two: every legal pair of values of two axes is in it.

    Greedy, from a fixed seed, so always the same for the same axes.
    """
    dice = random.Random(0)
    uncovered = {pair for pair in _all_pairs() if _complete(pair, dice) is not None}
    chosen: list[Point] = []
    while uncovered:
        first = min(uncovered, key=str)
        candidates = [p for _ in range(_CANDIDATES) if (p := _complete(first, dice)) is not None]
        best = max(candidates, key=lambda point: len(uncovered & set(_pairs(point))))
        uncovered -= set(_pairs(best))
        chosen.append(best)
    return tuple(_split(point) for point in chosen)


def _all_pairs() -> Iterator[Pair]:
    for (a, values_a), (b, values_b) in itertools.combinations(_AXES.items(), 2):
        for value_a, value_b in itertools.product(values_a, values_b):
            yield (a, value_a), (b, value_b)


def _pairs(point: Point) -> Iterator[Pair]:
    return itertools.combinations(zip(_AXES, point, strict=True), 2)


def _complete(pair: Pair, dice: random.Random) -> Point | None:
    """A random legal point with this pair in it; None when many tries find none."""
    fixed = dict(pair)
    for _ in range(200):
        point = tuple(
            fixed[name] if name in fixed else dice.choice(values) for name, values in _AXES.items()
        )
        if constraints(_split(point)[0], parse_arch("sm_80")) is None:
            return point
    return None


def _split(point: Point) -> tuple[FlashForwardKernelConfig, Traits]:
    values = dict(zip(_AXES, point, strict=True))
    knobs: dict[str, Any] = {name: values.pop(name) for name in _CONFIG_FIELDS}
    traits = Traits(**{name: bool(value) for name, value in values.items()})
    return FlashForwardKernelConfig(**knobs), traits
