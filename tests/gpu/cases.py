"""Attention problems for the GPU tests: a randomised grid, and the parametrisation of the
flash-attention project's forward test as far as this project's features go.  Pure."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fa_tune import families
from fa_tune.build.cache import ArtifactStore
from fa_tune.build.compile import BuildRequest, build
from fa_tune.core.arch import ArchLimits
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Artifact, Variant
from fa_tune.core.workload import BACKWARD, FORWARD, MASKS, DType, Workload
from fa_tune.families.base import Config, KernelFamily
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.decode.defaults import FEW_QUADS
from fa_tune.families.fields import d_v_of, is_kv_e4m3
from fa_tune.operations.forward.cases import example, fewest_queries, has_alignment
from fa_tune.operations.traits import Traits
from tests.gpu.score_hooks import HOOKS
from tests.tools import required_sm90
from tests.tools.required import ALL_D_HEADS, code_path_sample

# What most of these problems are for, and the others.
FORWARD_FAMILIES = [f.name for f in families.all_families() if f.operation == FORWARD]
BACKWARD_FAMILIES = [f.name for f in families.all_families() if f.operation == BACKWARD]
# How the tensors of a problem lie in memory; tests/gpu/oracle.py lays them out.
LAYOUTS = ("plain", "packed", "strided", "transposed", "expanded")
LONGEST = 4097
MAX_SCORES = 150_000_000  # of one case: what the fp64 result costs
GROUPS = (1, 2, 4, 8)
# How much larger scores are at the last key (negative: at the first, since kernels may begin with
# the last) than where all keys are alike; None: they are alike.
GROWTHS = (None, None, 12.0, -12.0)


@dataclass(frozen=True)
class Case:
    """One problem for one variant.  `strict`: no floor on what the error may be, and inputs as
    the flash-attention project draws them."""

    variant: Variant
    workload: Workload
    layout: str
    seed: int
    strict: bool = False

    @property
    def name(self) -> str:
        """What a failure is called by, and can be repeated from."""
        return f"{self.variant.key} {self.workload.key} {self.layout} seed {self.seed}"

    @property
    def growth(self) -> float | None:
        """Where scores grow from key to key, every block has new maxima, so that what was summed
        has to be rescaled again and again; where they do not, hardly ever after the first."""
        return None if self.strict else GROWTHS[self.seed % len(GROWTHS)]

    def request(self, limits: ArchLimits) -> BuildRequest:
        """What to compile for it."""
        return request(self.variant, self.workload, limits)


def request(variant: Variant, workload: Workload, limits: ArchLimits) -> BuildRequest:
    """What to compile to run a variant on a workload on such a device."""
    family = families.get(variant.family)
    traits = family.traits(family.parse(variant.config), workload)
    return BuildRequest(variant, traits, family.compile_arch(limits))


def requests_of(
    configs: Iterable[Config], traits: Sequence[str], limits: ArchLimits
) -> list[BuildRequest]:
    """The configs that run on such a device, each once, with each of these traits."""
    return [
        BuildRequest(families.variant(config), of_traits, families.of(config).compile_arch(limits))
        for config in dict.fromkeys(configs)
        if families.constraints(config, limits) is None
        for of_traits in traits
    ]


def compiled(requests: Sequence[BuildRequest], store: ArtifactStore) -> list[Artifact]:
    """The artifacts of requests, all of which must compile, in their order."""
    found = {r.request: r for r in build(list(dict.fromkeys(requests)), store)}
    failed = {one: r.reason for one, r in found.items() if r.artifact is None}
    assert not failed
    return [a for one in requests if (a := found[one].artifact) is not None]


def takes(family: KernelFamily, config: Config, workload: Workload) -> bool:
    """Whether the family's kernels compute such a workload."""
    try:
        family.traits(config, workload)
    except InvalidConfig:
        return False
    return True


# Configs ----------------------------------------------------------------------------------------


@functools.cache
def grid_configs(family: KernelFamily, limits: ArchLimits) -> list[Config]:
    """Three configs per dtype and d_head that run on such a device: the default, one of the
    tune set with other blocks, and one that takes other code paths (where the family has so
    many, and none for a d_head that it does not do); a fourth with turns, where those run, or
    another that takes other code paths.
    Always the same."""
    dice = random.Random(0)

    def runs(config: Config) -> bool:
        return family.constraints(config, limits) is None

    found: list[Config] = []
    for dtype, d_head in itertools.product(DType, ALL_D_HEADS):
        default = family.default_config(d_head, dtype)
        if not runs(default):
            continue
        tune = [
            c
            for c in family.configs("tune", dtypes=[dtype], d_head=d_head)
            if runs(c) and c != default
        ]
        others = [c for c in tune if families.blocks(c) != families.blocks(default)] or tune
        paths = [c for c in _other_paths(family, dtype, d_head) if runs(c)] or tune
        turns = [c for c in _in_turns(family, dtype, d_head) if runs(c)]
        found.append(default)
        found += [dice.choice(part) for part in (others, paths, turns) if part]
    return list(dict.fromkeys(found))


# Head dimensions of Q and K, and of V: that of MLA, fewer and more columns, whole and part panels.
PAIRS = (
    *((192, 128), (128, 64), (64, 128), (64, 256), (256, 64), (96, 192), (160, 96), (128, 32)),
    *((192, 64), (256, 224), (80, 16), (176, 112), (64, 48)),
)


def pair_configs(family: KernelFamily, limits: ArchLimits) -> list[Config]:
    """For V of another head dimension than Q and K: all of the fast set for the first of PAIRS,
    and the default, the first and the last of it for the others, types in turn."""
    found: list[Config] = []
    for number, (d_head, d_head_v) in enumerate(PAIRS):
        dtypes = list(DType) if number == 0 else [list(DType)[number % 2]]
        fast = family.configs("fast", dtypes=dtypes, d_head=d_head, d_head_v=d_head_v)
        defaults = [family.default_config(d_head, t, d_head_v=d_head_v) for t in dtypes]
        chosen = [*defaults, *(fast if number == 0 else [*fast[:1], *fast[-1:]])]
        found += [c for c in chosen if family.constraints(c, limits) is None]
    return list(dict.fromkeys(found))


def _other_paths(family: KernelFamily, dtype: DType, d_head: int) -> list[Config]:
    sample: list[Config] = []  # of another family, its tune set is all that is known here
    if family.name == "sm80":
        sample = [c for c, _ in code_path_sample(ALL_D_HEADS) if not c.ping_pong]  # see _in_turns
    elif family.name == "sm90":
        sample = [c for c, _ in required_sm90.code_path_sample()]
    return [dataclasses.replace(c, dtype=dtype, d_head=d_head) for c in sample]


def _in_turns(family: KernelFamily, dtype: DType, d_head: int) -> list[Config]:
    if family.name != "sm80":
        return _other_paths(family, dtype, d_head)  # one more of these
    return [c for c in family.configs("fast", dtypes=[dtype], d_head=d_head) if c.ping_pong]


# The randomised grid ----------------------------------------------------------------------------


def random_grid(seed: int, count: int, configs: Sequence[Config]) -> list[Case]:
    """`count` cases, the same for one seed: every config in turn, everything else at random."""
    dice = random.Random(seed)
    found = []
    for config in itertools.islice(itertools.cycle(configs), count):
        layout = dice.choice(LAYOUTS)
        if layout == "packed" and d_v_of(config) != config.d_head:
            layout = "strided"  # Q, K and V have no rows in common
        workload = _random_workload(dice, config, families.blocks(config), layout)
        found.append(Case(families.variant(config), workload, layout, dice.randrange(2**31)))
    return found


def _random_workload(
    dice: random.Random, config: Config, blocks: tuple[int, int], layout: str
) -> Workload:
    q, kv = (_random_length(dice, block) for block in blocks)
    if layout == "packed":
        kv = q
    group = dice.choice(GROUPS)
    batch, kv_heads = dice.randint(1, 3), dice.randint(1, 3)
    while batch * kv_heads > 1 and batch * kv_heads * group * q * kv > MAX_SCORES:
        batch, kv_heads = (batch - 1, kv_heads) if batch > 1 else (batch, kv_heads - 1)
    (mask,) = dice.choices(MASKS, (3, 3, 4))
    scale = None if dice.random() < 0.6 else 10 ** dice.uniform(-2, 0)
    return Workload(
        *(batch, kv_heads * group, kv_heads, q, kv, config.d_head, config.dtype),
        causal=mask != "full",
        bottom_right=mask == "causal_br",
        lse=dice.random() < 0.5,
        softmax_scale=scale,
        d_head_v=d_v_of(config),
    )


# Fields of a workload that change its scores or what its rows see, by how often they are drawn.
FEATURES = {"window": 0.6, "sink": 0.4, "softcap": 0.35, "alibi": 0.3, "hook": 0.25}
MIXTURES = 3  # sets of features for each config: every set is another kernel


def mixed_grid(seed: int, count: int, configs: Sequence[Config]) -> list[Case]:
    """As `random_grid`, with windows, sinks, soft caps and ALiBi in any mixture that the config's
    family takes."""
    dice = random.Random(seed)
    chosen = [[_features(dice) for _ in range(MIXTURES)] for _ in configs]
    found = []
    for number in range(count):
        config, sets = configs[number % len(configs)], chosen[number % len(configs)]
        features = sets[number // len(configs) % MIXTURES]
        layout = dice.choice(LAYOUTS)
        plain = _random_workload(dice, config, families.blocks(config), layout)
        workload = _with_features(dice, plain, features)
        case = Case(families.variant(config), workload, layout, dice.randrange(2**31))
        if takes(families.of(config), config, workload):
            found.append(case)
    return found


def _features(dice: random.Random) -> frozenset[str]:
    found = {name for name, often in FEATURES.items() if dice.random() < often}
    return frozenset(found or {"window"})


def _with_features(dice: random.Random, plain: Workload, features: frozenset[str]) -> Workload:
    w = plain
    fields: dict[str, Any] = {"sink": "sink" in features, "alibi": "alibi" in features}
    if "hook" in features:
        fields["score_hook"] = HOOKS[len(features) % len(HOOKS)]
    elif "softcap" in features:
        fields["softcap"] = dice.choice((0.5, 5.0, 30.0, 50.0))
    if "window" in features:
        sides = dice.choice(("left", "right", "both", "both"))
        for side in ("left", "right"):
            if sides in (side, "both"):
                longest = max(1, w.seq_len_kv)
                fields[f"window_{side}"] = int(longest ** dice.random()) - dice.randint(0, 1)
    if fields.keys() & {"window_left", "window_right"} or fields["alibi"]:
        fields["bottom_right"] = dice.random() < 0.6
    if not w.causal and fields.get("bottom_right", False) is False:
        fields.pop("bottom_right", None)
    return dataclasses.replace(w, **fields)


def _random_length(dice: random.Random, block: int) -> int:
    """Mostly at the edge of a block, whole blocks or odd; the long ones are rare."""
    kind = dice.random()
    most = LONGEST if dice.random() < 0.15 else 1100
    if kind < 0.3:
        length = block * dice.randint(1, most // block) + dice.choice((-1, 1))
    elif kind < 0.55:
        length = block * dice.randint(1, most // block)
    elif kind < 0.9:
        length = 2 * dice.randint(0, most // 2) + 1
    else:
        length = dice.randint(1, 16)
    return max(1, min(length, LONGEST))


# The flash-attention project's forward test -----------------------------------------------------

FA_LENGTHS = (
    (113, 203), (128, 217), (113, 211), (108, 256), (256, 512),
    (512, 256), (1024, 1024), (1023, 1024), (1024, 1023), (2048, 2048),
)  # fmt: skip
FA_BATCH, FA_HEADS = 4, 6
FA_KV_HEADS = {"mha": 6, "gqa": 2, "mqa": 1}
FA_D_HEADS = (32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256)
# Its packed form has other lengths, heads of its own, and no groups.
FA_PACKED_LENGTHS = (97, 128, 200, 384, 768, 1024, 1025, 2048)
FA_PACKED_HEADS = 9


def fa_forward_cases(family: KernelFamily, limits: ArchLimits) -> list[Case]:
    """Every combination of its lengths, types, masks (bottom-right), kinds of heads and head
    dimensions, on the default configs that run.

    Its dropout, ALiBi, windows and soft caps are other functions than this project computes;
    a workload has no place to ask for them.
    """
    seeds = itertools.count()
    return [
        Case(families.variant(config), workload, layout, next(seeds), strict=True)
        for d_head, dtype in itertools.product(FA_D_HEADS, DType)
        for config in (family.default_config(d_head, dtype),)
        if family.constraints(config, limits) is None
        for workload, layout in _fa_problems(d_head, dtype)
    ]


def _fa_problems(d_head: int, dtype: DType) -> Iterator[tuple[Workload, str]]:
    for (q, kv), kv_heads, causal in itertools.product(
        FA_LENGTHS, FA_KV_HEADS.values(), (False, True)
    ):
        shape = (FA_BATCH, FA_HEADS, kv_heads, q, kv, d_head, dtype)
        yield Workload(*shape, causal=causal, bottom_right=causal), "plain"
    for length, causal in itertools.product(FA_PACKED_LENGTHS, (False, True)):
        heads = (FA_PACKED_HEADS, FA_PACKED_HEADS)
        yield Workload(FA_BATCH, *heads, length, length, d_head, dtype, causal), "packed"


# Of one kernel ---------------------------------------------------------------------------------


def awkward_cases(request: BuildRequest) -> list[Case]:
    """Whole blocks and, with the trait, odd lengths down to few queries, for a kernel of these
    traits; with a mask both alignments, where some rows see nothing; grouped heads or not."""
    family, facts = families.get(request.variant.family), Traits.parse(request.traits)
    config = family.parse(request.variant.config)
    block = math.lcm(*families.blocks(config))
    lengths = [(1, 1), (2, 3), (3, 2), (2, 5), (3, 3)]
    shapes = [(q * block, kv * block) for q, kv in lengths]
    if facts.ragged:
        shapes += [(1, 1), (1, 257), (113, 203), (300, 37), (257, 1023)]
    heads = itertools.cycle(((2, 3, 3), (1, 6, 2), (3, 5, 1), (1, 1, 1), (2, 12, 4)))
    masks = ("causal", "causal_br") if facts.causal else ("full",)
    found = []
    for seed, ((q, kv), mask) in enumerate(itertools.product(shapes, masks)):
        workload = Workload(
            *(*next(heads), q, kv, config.d_head, config.dtype),
            causal=mask != "full",
            bottom_right=mask == "causal_br",
            lse=facts.lse,
            softmax_scale=0.3 if seed % 5 == 4 else None,
            d_head_v=d_v_of(config),
        )
        needed = Traits.parse(family.traits(config, workload))
        if replace(needed, ragged=facts.ragged) == facts:  # else the mask hides nothing
            found.append(Case(request.variant, workload, "strided", seed))
    return found


# For checking tools, under which everything takes long ---------------------------------------


def small_workloads(variant: Variant, traits: str) -> tuple[Workload, ...]:
    """A dozen tiles of queries with enough blocks of keys for every ring to turn, and few keys
    for more queries; with the trait lengths that end within a block, down to 1; with a mask both
    alignments, where some rows see nothing, and lengths down to 2."""
    family = families.get(variant.family)
    config = family.parse(variant.config)
    facts = Traits.parse(traits)
    rows, keys = families.blocks(config)
    rows *= getattr(config, "cluster", 1)
    shapes = [(2, 3, 1, 2 * rows, 5 * keys), (1, 2, 2, 3 * rows, 2 * keys)]
    if facts.ragged:
        shapes = [(2, 3, 1, rows + 17, 5 * keys + 17), (2, 2, 2, 2 * rows + 1, keys - 1)]
        shapes.append((1, 1, 1, fewest_queries(facts), fewest_queries(facts)))
    found = [
        example(
            *(facts, (*shape, config.d_head, config.dtype), number),
            bottom_right=bottom_right,
            d_head_v=d_v_of(config),
            op=family.operation,
        )
        for number, shape in enumerate(shapes)
        for bottom_right in ((False, True) if has_alignment(facts) else (False,))
    ]
    if family.name == "decode":
        found = [replace(w, kv_e4m3=is_kv_e4m3(config)) for w in found]
    return tuple(dict.fromkeys(found))


def small_caches(variant: Variant, traits: str) -> tuple[Workload, ...]:
    """The first of a decode kernel's small workloads with lengths that the device tells, none among
    them, in one piece and in pages; () for kernels that take no such lengths."""
    facts = Traits.parse(traits)
    if variant.family != "decode" or not facts.ragged or facts.packed:
        return ()
    family = families.get(variant.family)
    _, keys = families.blocks(family.parse(variant.config))
    first = small_workloads(variant, traits)[0]
    lengths = f"{first.seq_len_kv}+0+{keys + 1}"
    cache = replace(first, batch=3, cache_lengths=lengths, bottom_right=has_alignment(facts))
    return cache, replace(cache, page_size=48)


def few_heads(config: DecodeConfig, traits: str) -> tuple[Workload, ...]:
    """Two tiles of a head of K and V, with so many keys that their CTAs combine parts together: a
    length that the host knows, and one that the device does, if the kernel takes it."""
    facts = Traits.parse(traits)
    blocks = FEW_QUADS // (config.B_r * config.d_v // 4) + 2
    keys = blocks * config.B_c - (3 if facts.ragged else 0)
    shape = (1, 8, 1, config.B_r // 4, keys)
    known = example(
        *(facts, (*shape, config.d_head, config.dtype), 0),
        bottom_right=has_alignment(facts),
        d_head_v=d_v_of(config),
    )
    known = replace(known, kv_e4m3=is_kv_e4m3(config))
    return (known, replace(known, cache_lengths="equal")) if facts.ragged else (known,)


# For the worker ---------------------------------------------------------------------------------


def item_of(artifact: Artifact) -> dict[str, Any]:
    """What a worker needs to load a kernel, and what it can tell of it."""
    return {
        "subject": artifact.variant.key,
        "traits": artifact.traits,
        "arch": artifact.arch,
        "cubin": artifact.cubin,
        "symbols": list(artifact.symbols),
    }


def named(artifacts: Iterable[Artifact]) -> dict[str, dict[str, Any]]:
    """The items by variant and traits."""
    return {f"{a.variant.key} @ {a.traits}": item_of(a) for a in artifacts}


def by_request(cases: Iterable[Case], limits: ArchLimits) -> dict[BuildRequest, list[Case]]:
    """The cases by the kernel that they need."""
    found: dict[BuildRequest, list[Case]] = {}
    for case in cases:
        found.setdefault(case.request(limits), []).append(case)
    return found
