"""Random registries and problems through `store.registry.lookup` and through the core's tables: run
with the stub in place of the driver.

Arguments: the core's library, a registry with one good entry, how many registries, a seed.  Prints
how often an entry was exact, nearest, passed over for lack of a kernel, or none, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa_tune.build.native.core import Core, CoreTable, KernelImage, TableEntry
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan, ParamsLayout
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.lookup import METHODS, Target, alike, in_order, matches
from fa_tune.store.registry.schema import Entry, EntryKey, Gpu, Registry
from tests.csrc.stub import image

GPUS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")  # the first is the stub's
DEFAULT = "default"
LENGTHS = (512, 1000, 1024, 2048, 3000, 4096, 16384)
QUERIES = (1, 1, 4, *LENGTHS)
PROBLEMS = 60  # for each registry


@dataclass(frozen=True)
class SomeConfig:
    dtype: DType
    d_head: int
    B_r: int = 128
    B_c: int = 64
    d_head_v: int = 0


def some_workload(dice: random.Random) -> Workload:
    kv_heads = dice.choice((1, 4, 16))
    causal = dice.random() < 0.5
    return Workload(
        dice.choice((1, 2, 4, 16)),
        kv_heads * dice.choice((1, 2, 4)),
        kv_heads,
        dice.choice(QUERIES),
        dice.choice(LENGTHS),
        dice.choice((64, 128)),
        dice.choice(list(DType)),
        causal=causal,
        bottom_right=causal and dice.random() < 0.4,
        lse=dice.random() < 0.4,
        softmax_scale=dice.choice((None, None, 0.5)),
        d_head_v=dice.choice((0, 0, 0, 64)),
    )


def some_detail(dice: random.Random) -> dict[str, Any]:
    return dice.choice(
        (
            {"softmax_scale": dice.choice((None, 0.5, 2.0))},
            {"lse": dice.random() < 0.5},
            {"causal": True, "bottom_right": dice.random() < 0.5},
        )
    )


def some_registry(dice: random.Random, like: Entry) -> Registry:
    found: dict[EntryKey, Entry] = {}
    for _ in range(dice.choice((1, 5, 40))):
        gpu, method = dice.choice(GPUS), dice.choice((*METHODS, "other"))
        workload = some_workload(dice)
        if found and dice.random() < 0.4:  # one that is as near as another
            workload = dataclasses.replace(
                dice.choice(list(found.values())).workload, **some_detail(dice)
            )
        made = dataclasses.replace(
            like,
            gpu=Gpu(gpu, (9, 0)),
            workload=workload,
            method=method,
            chosen=Variant("sm80", f"config {len(found)}"),
            provenance=dataclasses.replace(like.provenance, gpu=gpu, method=method),
            confirmation=None,
        )
        found[made.key] = made
    return Registry.of(list(found.values()))


def kinds(workload: Workload, *, lacks_lse: bool) -> Iterable[str]:
    """Of the kernels of a config."""
    causal = "causal+" if workload.causal else ""
    return (f"{causal}ragged",) if lacks_lse else (f"{causal}ragged", f"{causal}ragged+lse")


def images(name: str, workload: Workload, traits: Iterable[str]) -> list[KernelImage]:
    launch = LaunchPlan(
        ParamsLayout.SM80_FORWARD, Grid.BLOCKS_HEADS_BATCH, 128, 1, 128, 0, 1, 1, 1, 0, 0, 0
    )
    config = SomeConfig(workload.dtype, workload.d_head, d_head_v=workload.d_head_v)
    return [
        KernelImage(
            name, CallPlan.forward(config, one, "sm_90", (launch,)), ("k",), image([("k", [1])])
        )
        for one in traits
    ]


def table_of(core: Core, entries: Sequence[Entry], without_lse: set[str]) -> CoreTable:
    made = [
        one
        for e in entries
        for name in (e.chosen.key,)
        for one in images(name, e.workload, kinds(e.workload, lacks_lse=name in without_lse))
    ]
    made += [
        one
        for w in (Workload(1, 1, 1, 1, 1, 64, DType.FP16), Workload(1, 1, 1, 1, 1, 64, DType.BF16))
        for one in images(DEFAULT, w, ("ragged", "causal+ragged", "ragged+lse"))
    ]
    rows = [TableEntry(e.gpu.name, e.workload, e.chosen.key) for e in entries]
    return core.table(made, rows, [DEFAULT])


def expected(registry: Registry, workload: Workload, without_lse: set[str]) -> tuple[str, str]:
    """What is to be found, and how."""
    skipped = ""
    found = matches(registry, Target(GPUS[0]), workload)
    for match in alike(found, workload):
        if not (workload.lse and match.entry.chosen.key in without_lse):
            return match.entry.chosen.key, skipped or ("exact" if match.exact else "nearest")
        skipped = "passed over"
    if workload.d_head == workload.d_v == 64 and not (workload.causal and workload.lse):
        return DEFAULT, "default"
    for match in found:
        if not (workload.lse and match.entry.chosen.key in without_lse):
            return match.entry.chosen.key, "of other rows"
    return "", "none"


def main(library: str, registry: str, count: str, seed: str) -> None:
    dice, core = random.Random(int(seed)), Core(Path(library))
    (like, *_) = registry_file.load(registry).entries
    seen: Counter[str] = Counter()
    for _ in range(int(count)):
        entries = some_registry(dice, like)
        names = [e.chosen.key for e in entries.entries]
        without_lse = set(dice.sample(names, len(names) // 3))
        table = table_of(core, in_order(entries.entries), without_lse)
        asked = [some_workload(dice) for _ in range(PROBLEMS)]
        asked += [e.workload for e in entries.entries]
        for workload in [*asked, *asked]:  # the second time from what it remembers
            config, how = expected(entries, workload, without_lse)
            try:
                found = table.find(workload)
            except NoUsableVariant:
                found = ""
            assert found == config, f"{workload.key}: {found}, not {config} ({how})"
            seen[how] += 1
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
