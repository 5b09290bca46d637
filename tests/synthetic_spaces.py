"""Spaces with times from a formula: synthetic, for tests only, never a recording.

The configs are the sm80 family's real ones with its real constraints.  The times follow what
the recordings of the tune set show on an H200: bank conflicts without swizzling, staging that
overflows the registers, occupancy that hides latency where loads are not issued early, a tail
of waves on short problems.  A hash of the config adds a per cent of ruggedness, so that the
optimum is no product of independent choices.
"""

import hashlib
import itertools
import math

from fa_tune import families
from fa_tune.core.arch import limits
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from fa_tune.families.sm80.constraints import constraints
from fa_tune.families.sm80.rules import TUNE_RULES
from fa_tune.search.strategies.base import Point, Space, knobs_of

REGISTER_FILE = 65536
SPILL_ABOVE = 255
SM_COUNT = 132


def configs(d_head: int = 128) -> list[FlashForwardKernelConfig]:
    """A wide grid of the family's knobs, less what cannot run: more than 1,000 configs."""
    switches = (False, True)
    tiles = (0, 2, 4)
    grid = itertools.product(
        (64, 128), (32, 64, 128), (4, 8), switches, switches, switches, tiles, tiles, tiles,
        switches, switches,
    )  # fmt: skip
    found = [FlashForwardKernelConfig(DType.FP16, d_head, *point) for point in grid]
    return [c for c in found if constraints(c, limits((9, 0))) is None]


def facts(c: FlashForwardKernelConfig) -> dict[str, float]:
    """What a compiler would say, estimated."""
    rows = c.B_r // c.n_warps
    steps = c.d_head // 16
    staged_k = (c.K_mma_load_K_tiles or steps) * c.B_c / 16
    staged_v = (c.V_mma_load_K_tiles or c.B_c // 16) * c.d_head / 16
    resident_q = rows * c.d_head / 64 if c.Q_mma_load_K_tiles == 0 else 2 * c.Q_mma_load_K_tiles
    staged = max(staged_k, staged_v) * (2 if c.mma_double_buffer_loads else 1)
    wanted = 40 + rows * (c.d_head + c.B_c) / 32 + resident_q + staged
    registers = min(SPILL_ABOVE, int(wanted))
    smem = c.smem_bytes
    ctas = min(REGISTER_FILE // (registers * c.threads), 233472 // (smem + 1024), 2048 // c.threads)
    return {
        "registers": registers,
        "spill_bytes": max(0, int(4 * (wanted - SPILL_ABOVE))),
        "dynamic_smem_bytes": smem,
        "threads": c.threads,
        "ctas_per_sm": max(1, ctas),
    }


def time_s(c: FlashForwardKernelConfig, seq_len: int, *, causal: bool = False) -> float | None:
    """Seconds, or None for a config that is made to crash (one in two hundred)."""
    used = facts(c)
    dice = _dice(str(c))
    if dice < 0.005:
        return None
    rows = c.B_r // c.n_warps
    warps = used["ctas_per_sm"] * c.n_warps
    mma = 1.0
    shared = 0.42 * (32 / rows) * (1.0 if c.swizzled else 5.5)
    shared += 0.10 * (32 / rows) * (c.Q_mma_load_K_tiles != 0)
    softmax = (0.20 if c.optimized_softmax else 0.28) * (1 + 8 / c.B_c)
    copies = (0.10 if c.async_copy else 0.32) * (128 / c.B_r)
    hidden = min(1.0, warps / 16)
    latency = (0.35 - 0.22 * hidden) * (0.4 if c.eager_load_blocks else 1.0)
    latency *= 0.75 if c.mma_double_buffer_loads and c.K_mma_load_K_tiles else 1.0
    spills = 0.002 * used["spill_bytes"] / (1 + 0.02 * used["spill_bytes"])
    spills += 0.15 * (used["spill_bytes"] > 256)
    work = max(mma, shared) + 0.35 * min(mma, shared) + softmax + copies + latency + spills
    blocks = 256 * math.ceil(seq_len / c.B_r)
    waves = blocks / (SM_COUNT * used["ctas_per_sm"])
    tail = math.ceil(waves) / waves if waves < 40 else 1.0
    if causal:
        work *= 0.5 + 0.5 * c.B_c / seq_len + 0.05 * (c.B_r / 64)
    rugged = 1 + 0.012 * (_dice(f"{seq_len}{causal}{c}") - 0.5)
    return 1e-9 * seq_len**2 / 16 * work * (0.7 + 0.3 * tail) * rugged


def space(seq_len: int, *, causal: bool = False) -> tuple[Space, list[float | None]]:
    """A space and the time of each of its points; the family's default comes first."""
    family = families.get("sm80")
    found = configs()
    default = family.default_config(128, DType.FP16)
    points = tuple(
        Point(
            f"sm80:{c}",
            knobs_of(c),
            facts(c),
            tuple(rule.name for rule in TUNE_RULES if rule.rejects(c)),
        )
        for c in found
    )
    start = (found.index(default),) if default in found else ()
    return Space(points, start), [time_s(c, seq_len, causal=causal) for c in found]


def outcome(time_s: float | None) -> Outcome:
    """What a point without a time stands for."""
    return Outcome.CRASHED if time_s is None else Outcome.OK


def _dice(text: str) -> float:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6]) / 2**48
