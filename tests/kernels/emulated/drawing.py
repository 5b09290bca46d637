"""Kernels and problems at random, each from a number, so that a finding is repeated by it.

A kernel is drawn with what its problems have in common, which are its traits:

    dense     lengths off any tile, windows, sinks, soft caps, ALiBi and hooks in any mixture
    packed    the same of packed batches, of equal lengths and of all others
    data      dense ones whose scores are hard: dominant keys, growth, ties, infinities
    decode    caches on the device, in pages or not, that new keys are appended to or not
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from fa_tune import families
from fa_tune.build.compile import BuildRequest
from fa_tune.core.arch import parse_arch
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.workload import PAGE_KEYS, DType, Workload
from fa_tune.families.base import Config
from fa_tune.families.decode.config import Combine, DecodeConfig, KVType
from fa_tune.families.fields import d_v_of
from tests.described import DeviceFacts
from tests.gpu.score_hooks import HOOKS
from tests.kernels.emulated.cached_problems import Cache, narrow
from tests.kernels.emulated.hard_scores import PATTERNS, draw_hard
from tests.kernels.emulated.packed_problems import PackedProblem
from tests.kernels.emulated.problems import LAYOUTS, NAN, Problem
from tests.kernels.emulated.trials import CachedTrial, DenseTrial, PackedTrial, Rows, Trial
from tests.tools import required, required_sm90

ARCH = "sm_90a"
D_HEADS = (32, 40, 48, 64, 72, 80, 96, 104, 112, 128, 144, 192, 256)
OTHER_D_V = (16, 24, 32, 48, 64, 72, 96, 128, 144, 192, 256)
MOST_SCORES = 500_000  # of a dense problem; packed ones have half as many
MOST_KEYS = 6_000  # of a decoding problem, of all sequences and heads; of a few four times as many
GROUPS = (1, 1, 2, 3, 4, 8)
FEW_QUERIES = (1, 1, 1, 2, 3, 7, 20)
SOFTCAPS = (0.5, 5.0, 15.0, 50.0)
TRIES = 400
# How often scores are changed so, and more.
FEATURES = {"window": 0.4, "sink": 0.3, "softcap": 0.2, "alibi": 0.25, "hook": 0.15}


class NothingDrawn(Exception):
    """No kernel, or no problem of a kernel, was found."""


@dataclass(frozen=True)
class DrawnKernel:
    """A kernel, and what its problems have in common.  `whole`: lengths are whole blocks."""

    kind: str
    request: BuildRequest
    features: frozenset[str]
    causal: bool
    lse: bool
    whole: bool

    @property
    def config(self) -> Config:
        """The kernel's config."""
        return families.get(self.request.variant.family).parse(self.request.variant.config)


def draw_kernel(family: str, kind: str, seed: str) -> DrawnKernel:
    """One of the `fast` set, or with other knobs at random."""
    dice = random.Random(seed)
    for _ in range(TRIES):
        config = _decode_config(dice) if family == "decode" else _config(family, dice)
        found = DrawnKernel(
            kind,
            BuildRequest(families.variant(config), "plain", ARCH),
            frozenset(name for name, often in FEATURES.items() if dice.random() < often),
            causal=dice.random() < 0.5,
            lse=dice.random() < 0.7,
            whole=kind in ("dense", "data") and dice.random() < 0.15,
        )
        if kind == "data" and dice.random() < 0.7:
            found = dataclasses.replace(found, features=frozenset())
        if family == "decode":
            found = dataclasses.replace(found, features=found.features - {"alibi", "hook"})
        try:
            workload = _DRAWS[kind](found, dice, "0").workload
            traits = families.of(config).traits(config, workload)
        except InvalidConfig:
            continue
        request = dataclasses.replace(found.request, traits=traits)
        return dataclasses.replace(found, request=request)
    raise NothingDrawn(f"no {family} kernel for {kind} {seed}")


def draw_trial(kernel: DrawnKernel, seed: str) -> Trial:
    """A problem with the kernel's traits."""
    dice = random.Random(seed)
    config = kernel.config
    for _ in range(TRIES):
        try:
            drawn = _DRAWS[kernel.kind](kernel, dice, seed)
            if families.of(config).traits(config, drawn.workload) == kernel.request.traits:
                return drawn.trial()
        except InvalidConfig:
            continue
    raise NothingDrawn(f"no problem with {kernel.request.traits} for {seed}")


@dataclass(frozen=True)
class _Drawn:
    """A workload, by which the traits are known, and what makes the rest."""

    workload: Workload
    trial: Callable[[], Trial]


# Configs --------------------------------------------------------------------------------------


def _config(family: str, dice: random.Random) -> Config:
    """A config of the forward families that can run."""
    found, limits = families.get(family), parse_arch(ARCH)
    pool: list[Config] = []
    while not pool:  # not all families have all head dimensions
        d_head, dtype = dice.choice(D_HEADS), dice.choice(list(DType))
        (key,) = dice.choices(("fast", "tune"), (7, 3))
        pool = [
            config
            for config in found.configs(key, dtypes=[dtype], d_head=d_head)
            if found.constraints(config, limits) is None
        ]
    config = dice.choice(pool)
    if dice.random() < 0.3:
        other = dataclasses.replace(config, d_head_v=dice.choice(OTHER_D_V))
        config = other if found.constraints(other, limits) is None else config
    if dice.random() < 0.5:
        return config
    values = _values(family)
    for _ in range(dice.choice((2, 4, 8, 16))):
        name = dice.choice(list(values))
        other = dataclasses.replace(config, **{name: dice.choice(values[name])})
        config = other if found.constraints(other, limits) is None else config
    return config


@cache
def _values(family: str) -> Mapping[str, Sequence[Any]]:
    """What the code paths have of each knob but type and head dimensions."""
    sample = (
        required_sm90.code_path_sample()
        if family == "sm90"
        else required.code_path_sample(required.ALL_D_HEADS)
    )
    names = [f.name for f in dataclasses.fields(sample[0][0])]
    return {
        name: sorted({getattr(config, name) for config, _ in sample})
        for name in names
        if name not in ("dtype", "d_head", "d_head_v")
    }


def _decode_config(dice: random.Random) -> DecodeConfig:
    family, limits = families.get("decode"), parse_arch(ARCH)
    dtype = dice.choice(list(DType))
    while True:
        if dice.random() < 0.4:
            key = dice.choice(("fast", "e4m3"))
            pool = family.configs(key, dtypes=[dtype], d_head=dice.choice((64, 128, 128, 256)))
            config = dice.choice(pool)
        else:
            row_warps = dice.choice((1, 1, 2, 4))
            cluster = dice.choice((1, 1, 1, 2, 4, 8))
            config = DecodeConfig(
                *(
                    dtype,
                    dice.choice((32, 48, 64, 72, 80, 96, 104, 128, 256)),
                    dice.choice((16, 32, 64)),
                ),
                *(dice.choice((16, 32, 48, 64, 128, 256)), row_warps * dice.choice((1, 2, 4))),
                stages=dice.choice((2, 3, 4, 8)),
                row_warps=row_warps,
                ctas_per_sm=dice.choice((1, 1, 2, 3, 4)),
                min_blocks=dice.choice((1, 1, 1, 2, 4, 1024)) if cluster == 1 else 1,
                aligned=cluster == 1 and dice.random() < 0.5,
                combine=dice.choice(list(Combine)) if cluster == 1 else Combine.LAST,
                d_head_v=dice.choice((0, 0, 0, 32, 40, 64, 80, 128)),
                kv_type=dice.choice((KVType.SAME, KVType.SAME, KVType.E4M3)),
                dependent=dice.random() < 0.3,
                cluster=cluster,
                tile_keys=dice.choice((0, 0, 16, 40, 64, 128, 512)) if cluster == 1 else 0,
                by_rows=cluster == 1 and dice.random() < 0.5,
                shared_queries=dice.random() < 0.4,
                sectors=dice.random() < 0.3,
            )
        if family.constraints(config, limits) is None:
            return config


# Workloads ------------------------------------------------------------------------------------


def _device(dice: random.Random) -> DeviceFacts:
    return DeviceFacts(dice.choice((2, 2, 3, 5, 8)), dice.choice((1 << 16, 1 << 20, 1 << 24)))


def _length(dice: random.Random, block: int, whole: bool, most: int = 700) -> int:
    """At an edge of a block, anything, or few."""
    kind = dice.random()
    if whole:
        return block * dice.randint(1, max(1, most // block))
    if kind < 0.4:
        return max(1, block * dice.randint(1, max(1, most // block)) + dice.choice((-1, 0, 1)))
    return dice.randint(1, 40) if kind < 0.55 else dice.randint(1, most)


def _features(kernel: DrawnKernel, dice: random.Random, longest: int) -> dict[str, Any]:
    """Of a workload, as the kernel's problems have them."""
    fields: dict[str, Any] = {"lse": kernel.lse, "causal": kernel.causal}
    fields |= {"sink": "sink" in kernel.features, "alibi": "alibi" in kernel.features}
    if "hook" in kernel.features:
        fields["score_hook"] = HOOKS[len(kernel.request.variant.config) % len(HOOKS)]
    elif "softcap" in kernel.features:
        fields["softcap"] = dice.choice(SOFTCAPS)
    if "window" in kernel.features:
        sides = dice.choice((("left",), ("left", "right"), ("right",)))
        for side in sides[:1] if kernel.causal else sides:
            fields[f"window_{side}"] = max(0, int(longest ** dice.random()) - dice.randint(0, 1))
    if dice.random() < 0.2:
        fields["softmax_scale"] = 10 ** dice.uniform(-2, 0)
    return fields


def _heads(dice: random.Random) -> tuple[int, int]:
    kv_heads = dice.choice((1, 1, 2, 3))
    return kv_heads * dice.choice(GROUPS), kv_heads


def _dense_workload(kernel: DrawnKernel, dice: random.Random) -> Workload:
    config = kernel.config
    rows, columns = families.blocks(config)
    q, kv = (_length(dice, block, kernel.whole) for block in (rows, columns))
    kv = q if dice.random() < 0.3 and not kernel.whole else kv
    if kernel.request.variant.family == "decode":
        q = min(q, dice.choice(FEW_QUERIES))
    heads, kv_heads = _heads(dice)
    batch = dice.choice((1, 1, 2, 3))
    if batch * heads * q * kv > MOST_SCORES:
        batch, heads, kv_heads = 1, heads // kv_heads, 1
        heads = max(1, min(heads, MOST_SCORES // (q * kv)))
    fields = _features(kernel, dice, max(q, kv))
    if fields["causal"] or fields["alibi"] or "window" in kernel.features:
        fields["bottom_right"] = dice.random() < 0.6
    return Workload(
        *(batch, heads, kv_heads, q, kv, config.d_head, config.dtype),
        d_head_v=d_v_of(config),
        **fields,
    )


def _draw_dense(kernel: DrawnKernel, dice: random.Random, seed: str) -> _Drawn:
    w = _dense_workload(kernel, dice)

    def trial() -> Trial:
        layout, number = dice.choice(LAYOUTS), dice.randrange(2**31)
        problem = Problem.draw(w, layout, number)
        name = f"{w.key} {layout} {seed}"
        return DenseTrial(name, problem, _device(dice), problem, Rows.none(w))

    return _Drawn(w, trial)


def _draw_data(kernel: DrawnKernel, dice: random.Random, seed: str) -> _Drawn:
    w = dataclasses.replace(_dense_workload(kernel, dice), softmax_scale=None)
    pattern = dice.choice(PATTERNS)
    if pattern == "scale":
        w = dataclasses.replace(w, softmax_scale=10 ** dice.uniform(-12, 12))
    # Q, K and V that no element has in common.
    layout, number = dice.choice(("plain", "strided", "transposed")), dice.randrange(2**31)

    def trial() -> Trial:
        problem = Problem.draw(w, layout, 3 * number)
        hard = draw_hard(problem, pattern, number)
        name = f"{w.key} {layout} {pattern} {seed}"
        return DenseTrial(name, problem, _device(dice), hard.judged, hard.rows)

    return _Drawn(w, trial)


# Packed batches -------------------------------------------------------------------------------


def _members(dice: random.Random, rows: int, columns: int) -> list[tuple[int, int]]:
    """Lengths of queries and keys, in one of the ways in which batches are alike or not."""
    kind = dice.choice(("mixed", "equal", "all but one", "one row", "unlike", "many", "zeros"))
    most = dice.choice((40, 130, 300, 500))
    if kind == "many":
        count = dice.choice((50, 100, 200, 257, 300))
        short = dice.choice((3, 20))
        equal = (dice.randint(1, short), dice.randint(1, short))
        alike = dice.random() < 0.3
        return [
            equal if alike else (dice.randint(0, short), dice.randint(0, short))
            for _ in range(count)
        ]
    count = dice.choice((1, 2, 3, 5, 9, 17))
    edge = _length(dice, rows, False, most), _length(dice, columns, False, most)
    if kind in ("equal", "all but one"):
        found = [edge] * max(2, count)
        if dice.random() < 0.5:
            found = [(edge[0], edge[0])] * len(found)
        if kind == "all but one":
            # With as many rows in all or not.
            one, other = dice.sample(range(len(found)), 2)
            q, kv = found[one]
            by, of_keys = dice.randint(0, q), dice.randint(0, kv)
            found[one] = q - by, kv - of_keys
            if dice.random() < 0.6:
                found[other] = q + by, kv + of_keys
        return found
    if kind == "one row":
        return [(1, dice.randint(0, most)) for _ in range(count)]
    found = [(n, n) for n in (_length(dice, rows, False, most) for _ in range(count))]
    if kind == "unlike":
        found = [(n, _length(dice, columns, False, most)) for n, _ in found]
    if kind == "zeros":
        found = [dice.choice((pair, (0, 0), (pair[0], 0), (0, pair[1]))) for pair in found]
    return found


def _draw_packed(kernel: DrawnKernel, dice: random.Random, seed: str) -> _Drawn:
    config = kernel.config
    members = _members(dice, *families.blocks(config))
    heads, kv_heads = _heads(dice)
    while heads * sum(q * kv for q, kv in members) > MOST_SCORES // 2 and len(members) > 1:
        members = members[: -(-len(members) // 2)]
    longest = [max(1, *(m[i] for m in members)) for i in range(2)]
    if dice.random() < 0.2:  # only the device knows how long they are
        longest = [n + dice.randint(0, 200) for n in longest]
    q_text, kv_text = ("+".join(str(m[i]) for m in members) for i in range(2))
    w = Workload(
        *(len(members), heads, kv_heads, *longest, config.d_head, config.dtype),
        d_head_v=d_v_of(config),
        lengths=f"{q_text}x{kv_text}",
        **_features(kernel, dice, max(longest)),
    )
    if w.total_q == 0 or w.total_kv == 0:
        raise InvalidConfig("no rows")

    def trial() -> Trial:
        gaps = np.zeros((len(members), 2), np.int32)
        if dice.random() < 0.4:
            most = dice.choice((1, 5, 70))
            gaps = np.array([[dice.randint(0, most) for _ in range(2)] for _ in members], np.int32)
            gaps[:, dice.choice((0, 1))] *= dice.randint(0, 1)
        layout, number = dice.choice(("plain", "strided", "transposed")), dice.randrange(2**31)
        problem = PackedProblem.of(w, layout, number, gaps)
        if gaps.any() or dice.random() < 0.5:
            untold = dataclasses.replace(problem.workload, lengths="")
            problem = dataclasses.replace(problem, workload=untold)
        name = f"{w.key[:300]} {layout} gaps {gaps.sum(0).tolist()} {seed}"
        return PackedTrial(name, problem, _device(dice))

    return _Drawn(w, trial)


# Decoding -------------------------------------------------------------------------------------


def _cache_lengths(dice: random.Random, kv_heads: int) -> list[int]:
    batch = dice.choice((1, 2, 3, 5, 9, 16, 40))
    most = dice.choice((40, 300, 1000, 4096))
    kind = dice.choice(("equal", "uniform", "few", "lognormal"))
    keys = MOST_KEYS * dice.choice((1, 1, 1, 1, 4))
    most = max(1, min(most, keys // (batch * kv_heads)))
    if kind == "equal":
        return [dice.randint(1, most)] * batch
    if kind == "uniform":
        return [dice.randint(0, most) for _ in range(batch)]
    if kind == "few":
        return [dice.choice((0, 1, 2, most)) for _ in range(batch)]
    return [min(most, int(dice.lognormvariate(4, 1.5))) for _ in range(batch)]


def _draw_decode(kernel: DrawnKernel, dice: random.Random, seed: str) -> _Drawn:
    config = kernel.config
    kv_heads = dice.choice((1, 1, 2, 4))
    heads = kv_heads * dice.choice((1, 2, 3, 4, 5, 8, 16))
    queries = dice.choice(FEW_QUERIES)
    lengths = _cache_lengths(dice, kv_heads)
    added = dice.choice((0, 0, 1, queries, 5))
    appends = added > 0 and dice.random() < 0.7
    if appends:
        lengths = [max(n, added) for n in lengths]
    page = dice.choice((0, 1, 2, 3, 4, 16)) * PAGE_KEYS
    room = max(1, *lengths) + dice.randint(0, 100)
    capacity = -(-room // (page or 1)) * (page or 1)
    fields = _features(kernel, dice, max(2, *lengths))
    shape = (len(lengths), heads, kv_heads, queries)
    same = (config.d_head, config.dtype)
    one = Workload(
        *(*shape, capacity, *same),
        d_head_v=config.d_head_v,
        **fields,
        bottom_right=fields["causal"] or "window" in kernel.features,
    )
    left = one.window_left
    if appends and left is not None and added > queries + left:
        raise InvalidConfig("new keys that no query sees")
    narrow_kv = config.kv_type is KVType.E4M3
    told = Workload(
        *(*shape, max(1, *lengths), *same),
        d_head_v=config.d_head_v,
        **fields,
        cache_lengths="+".join(map(str, lengths)),
    )

    def trial() -> Trial:
        number = dice.randrange(2**31)
        problem = Problem.draw(one, "plain", number)
        for i, n in enumerate(lengths):
            problem.k[i, n:] = NAN
            problem.v[i, n:] = NAN
        given, same_type = narrow(problem, number) if narrow_kv else (problem, problem)
        cache = Cache(
            (given.k, given.v), np.array(lengths, np.int32), added, appends, page, seed=number
        )
        judged = dataclasses.replace(same_type, workload=told)
        new = f"{added} {'appended' if appends else 'added'}"
        name = f"{told.key[:300]} room {capacity} page {page} {new} {seed}"
        return CachedTrial(name, given, _device(dice), cache, judged)

    return _Drawn(dataclasses.replace(one, kv_e4m3=narrow_kv), trial)


_DRAWS: Mapping[str, Callable[[DrawnKernel, random.Random, str], _Drawn]] = {
    "dense": _draw_dense,
    "packed": _draw_packed,
    "data": _draw_data,
    "decode": _draw_decode,
}
KINDS = tuple(_DRAWS)
