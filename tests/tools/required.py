"""What has to compile, and for which architectures.

`required_builds` are the named sets at both head dimensions; `code_path_builds` are a few
variants that together take every pair of choices the kernels can make.
"""

from __future__ import annotations

import dataclasses
from functools import cache

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import parse_arch
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.sets import get_kernel_configs
from fa_tune.operations.traits import Traits
from tests.tools.covering import TRAIT_AXES, Axes, Space, Value, covering_array

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
    found: dict[str, tuple[Value, ...]] = {}
    for f in dataclasses.fields(FlashForwardKernelConfig):
        match f.metadata["place"]:
            case "flag":
                found[f.name] = (False, True)
            case "choice":
                found[f.name] = tuple(f.metadata["type"])
            case "tiles":
                found[f.name] = (0, 2)
            case "number":
                found[f.name] = _values_of_number(f.name, f.default)
            case _:
                found[f.name] = d_heads if f.name == "d_head" else _NUMBERS[f.name]
    return {**found, **TRAIT_AXES}


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


@cache
def code_path_sample(
    d_heads: tuple[int, ...] = (64, 128),
) -> tuple[tuple[FlashForwardKernelConfig, Traits], ...]:
    """Two covering arrays of strength two: every legal pair of values of two axes is in the
    first, which runs everywhere, or, with ping_pong, in the second.  Always the same for the
    same axes."""
    whole = axes(d_heads)
    return (
        *covering_array(_space({**whole, "ping_pong": (False,)}, LEAST_ARCH)),
        *covering_array(_space({**whole, **_TURNS}, TURNS_ARCH)),
    )


def _space(values: Axes, arch: str) -> Space[FlashForwardKernelConfig]:
    limits = parse_arch(arch)
    return Space(FlashForwardKernelConfig, values, lambda c: constraints(c, limits) is None)
