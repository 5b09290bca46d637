"""A registry of a few configs on two GPU models, for exports that are quick to compile."""

import dataclasses
import random
from pathlib import Path

from fa_tune import families
from fa_tune.core.model import Variant
from fa_tune.core.workload import BACKWARD, FORWARD, DType, Workload
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.schema import Entry, Gpu, Registry
from tests.project_files import ROOT

H200 = Gpu("NVIDIA H200", (9, 0))
A100 = Gpu("NVIDIA A100-SXM4-80GB", (8, 0))
D_HEAD = 64
FAST, OTHER = "sm90(FP16, 64, 128x128): stages_2", "sm90(FP16, 64, 192x128): stages_2+pingpong"
MMA = "(FP16, 64, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles"
FEW = "decode(FP16, 64, 32, 64, 2): row_warps_2"
GRADIENTS = "sm90_bwd(FP16, 64, 128, 128): turns"
MMA_GRADIENTS = "sm80_bwd(FP16, 64, 64, 64, 4): stages_2"
FEW_CACHED = "decode(FP16, 64, 16, 64, 2): aligned"
# GPU, (batch, heads, kv heads, length of queries, of keys), causal, config, method.
CHOSEN = (
    (H200, (16, 16, 16, 512, 512), False, FAST, "events"),
    (H200, (16, 16, 16, 512, 512), False, OTHER, "ncu"),
    (H200, (16, 16, 16, 4096, 4096), False, FAST, "ncu"),
    (H200, (4, 16, 4, 16384, 16384), False, OTHER, "events"),
    (H200, (1, 8, 1, 1000, 3000), False, MMA, "events"),
    (H200, (16, 16, 16, 2048, 2048), True, FAST, "events"),
    (H200, (8, 16, 4, 2, 8192), False, FEW, "events"),
    (A100, (16, 16, 16, 1024, 1024), False, MMA, "events"),
    (A100, (2, 16, 16, 8192, 8192), True, MMA, "events"),
)
# The same of problems that no shape says.
CHOSEN_BESIDE = (
    (H200, {"causal": True, "window_left": 127, "sink": True}, FAST),
    (H200, {"causal": True, "packed": True, "total_q": 9000, "total_kv": 9000}, FAST),
    (A100, {"alibi": True}, MMA),
)
# Of the backward pass.
CHOSEN_BACKWARD = (
    (H200, (16, 16, 16, 4096, 4096), False, GRADIENTS),
    (A100, (2, 16, 16, 8192, 8192), True, MMA_GRADIENTS),
)


# Of a cache of the same sizes as an entry above, by its lengths.
CHOSEN_CACHED = (("equal", FEW), ("lognormal-1-0", FEW_CACHED))


def like() -> Entry:
    """Some good entry."""
    path = ROOT / "tests" / "store" / "registry" / "data" / "schema-3.json"
    return registry_file.load(path).entries[0]


def entry(gpu: Gpu, workload: Workload, config: str, method: str = "events") -> Entry:
    parsed = families.parse(config)
    given = like()
    return dataclasses.replace(
        given,
        gpu=gpu,
        workload=workload,
        method=method,
        chosen=Variant(families.of(parsed).name, config),
        default=None,
        ratio_to_default=None,
        tie_set=(),
        runners_up=(),
        provenance=dataclasses.replace(given.provenance, gpu=gpu.name, method=method),
        confirmation=None,
    )


def small_registry() -> Registry:
    plain = (
        entry(gpu, Workload(*shape, D_HEAD, DType.FP16, causal=causal), config, method)
        for gpu, shape, causal, config, method in CHOSEN
    )
    beside = (
        entry(gpu, Workload(8, 16, 4, 4096, 4096, D_HEAD, DType.FP16, **traits), config)  # type: ignore[arg-type]
        for gpu, traits, config in CHOSEN_BESIDE
    )
    cached = (
        entry(H200, Workload(8, 16, 4, 2, 8192, D_HEAD, DType.FP16, cache_lengths=lengths), config)
        for lengths, config in CHOSEN_CACHED
    )
    backward = (
        entry(gpu, Workload(*shape, D_HEAD, DType.FP16, causal=causal, op=BACKWARD), config)
        for gpu, shape, causal, config in CHOSEN_BACKWARD
    )
    return Registry.of((*plain, *beside, *cached, *backward))


def saved(path: Path) -> Path:
    registry_file.save(path, small_registry())
    return path


def some_workload(dice: random.Random) -> Workload:
    kv_heads = dice.choice((1, 3, 8, 16))
    causal = dice.random() < 0.4
    lengths = [dice.choice((dice.randint(1, 20_000), 128 * dice.randint(1, 64))) for _ in range(2)]
    if dice.random() < 0.4:
        lengths[0] = dice.randint(1, dice.choice((32, 200)))
    op = BACKWARD if dice.random() < 0.2 else FORWARD
    cached = op == FORWARD and lengths[0] <= 32 and dice.random() < 0.5
    return Workload(
        dice.randint(1, 32),
        kv_heads * dice.choice((1, 2, 4, 71)),
        kv_heads,
        *lengths,
        D_HEAD,
        DType.FP16,
        causal=causal,
        bottom_right=causal and dice.random() < 0.4,
        softmax_scale=dice.choice((None, 0.5)),
        cache_lengths="equal" if cached else "",
        op=op,
    )
