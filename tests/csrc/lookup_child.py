"""Random registries and problems through `store.registry.lookup` and through the core's tables: run
with the stub in place of the driver.

Arguments: the core's library, a registry with one good entry, how many registries, a seed.  Prints
how often an entry was exact, nearest, passed over for lack of a kernel, or none, and of which kinds
the problems were, as JSON.
"""

import dataclasses
import json
import random
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fa_tune.build.native.core import Core, KernelImage
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.model import Variant
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode.config import KVType
from fa_tune.families.plan import CallPlan, Grid, LaunchPlan
from fa_tune.operations.forward.spec import seen_from, seen_to
from fa_tune.operations.traits import Traits
from fa_tune.store.registry import file as registry_file
from fa_tune.store.registry.lookup import METHODS, Target, in_order, matches, near_enough
from fa_tune.store.registry.schema import Entry, EntryKey, Gpu, Registry
from tests.csrc.stub import image
from tests.csrc.tables import CoreTable, entry

GPUS = ("NVIDIA H200", "NVIDIA H100 80GB HBM3")  # the first is the stub's
DEFAULT = "default"
FEW = {f"few {rows}": rows for rows in (64, 16)}  # defaults for few rows, and the rows of a tile
LENGTHS = (512, 1000, 1024, 2048, 3000, 4096, 16384)
QUERIES = (1, 1, 4, 16, 17, 100, 200, *LENGTHS)
ARCHS = {"sm_90": True, "sm_90a": True, "compute_80": True, "sm_80": False}  # runs on the stub
PROBLEMS = 60  # for each registry


@dataclass(frozen=True)
class SomeConfig:
    dtype: DType
    d_head: int
    B_r: int = 128
    B_c: int = 64
    d_head_v: int = 0
    kv_type: KVType = KVType.SAME
    exact: bool = False


def some_workload(dice: random.Random) -> Workload:
    kv_heads = dice.choice((1, 4, 16))
    causal = dice.random() < 0.5
    kind = dice.choice(((64, 0), (64, 0), (64, 0), (128, 0), (128, 64), (256, 0), (192, 128)))
    more: dict[str, Any] = {}
    if dice.random() < 0.15:
        more = {"packed": True, "total_q": dice.choice(LENGTHS), "total_kv": dice.choice(LENGTHS)}
    elif dice.random() < 0.1:
        more = {"kv_e4m3": True}
    if not more.get("packed") and dice.random() < 0.3:
        more["cache_lengths"] = "equal"
    if dice.random() < 0.2:
        more |= some_score(dice)
    aligned = causal or bool({"window_left", "window_right", "alibi"} & more.keys())
    return Workload(
        dice.choice((1, 2, 4, 16)),
        kv_heads * dice.choice((1, 2, 4, 71)),
        kv_heads,
        dice.choice(QUERIES),
        dice.choice(LENGTHS),
        kind[0],
        dice.choice(list(DType)),
        causal=causal,
        bottom_right=aligned and dice.random() < 0.4,
        lse=dice.random() < 0.4,
        softmax_scale=dice.choice((None, None, 0.5)),
        d_head_v=kind[1],
        accuracy=dice.choice(("fast",) * 5 + ("exact",)),
        **more,
    )


def some_score(dice: random.Random) -> dict[str, Any]:
    """What hides keys or changes scores."""
    left, right = (dice.choice((0, 100, 127, 5000, 1 << 40)) for _ in range(2))
    return dice.choice(
        (
            {"window_left": left},
            {"window_right": right},
            {"window_left": left, "window_right": right},
            {"sink": True},
            {"softcap": dice.choice((30.0, 50.0))},
            {"alibi": True},
            {"sink": True, "window_left": left},
        )
    )


def some_detail(dice: random.Random) -> dict[str, Any]:
    return dice.choice(
        (
            {"softmax_scale": dice.choice((None, 0.5, 2.0))},
            {"lse": dice.random() < 0.5},
            {"causal": True, "bottom_right": dice.random() < 0.5},
            some_score(dice),
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


@dataclass(frozen=True)
class Kernels:
    """Of a config: what it was chosen for, whether kernels with a log-sum-exp lack, and what they
    were compiled for."""

    workload: Workload
    lacks_lse: bool
    arch: str

    @property
    def traits(self) -> list[Traits]:
        kind = traits_of(self.workload)
        return [replace(kind, lse=lse) for lse in ((False,) if self.lacks_lse else (False, True))]

    def compute(self, asked: Workload) -> bool:
        """Of the same kind as theirs."""
        return ARCHS[self.arch] and traits_of(asked) in self.traits


def traits_of(w: Workload) -> Traits:
    return Traits(
        causal=seen_to(w) is not None,
        ragged=True,
        lse=w.lse,
        window=seen_from(w) is not None,
        sink=w.sink,
        softcap=w.softcap is not None,
        alibi=w.alibi,
        packed=w.packed,
    )


def some_kernels(dice: random.Random, entries: Iterable[Entry]) -> dict[str, Kernels]:
    return {
        e.chosen.key: Kernels(
            e.workload, dice.random() < 1 / 3, dice.choice(("sm_90", "sm_90", *ARCHS))
        )
        for e in entries
    }


def images(
    name: str, w: Workload, traits: Iterable[Traits], arch: str = "sm_90", few: int = 0
) -> list[KernelImage]:
    """`few`: rows of a tile for few rows."""
    launch = LaunchPlan(
        "sm80_forward", *(Grid.BLOCKS_HEADS_BATCH, few or 128, 1, 128, 0, 1, 1, 1, 0, 0, 0)
    )
    config = SomeConfig(
        w.dtype,
        w.d_head,
        d_head_v=w.d_head_v,
        kv_type=KVType(w.kv_e4m3),
        exact=w.accuracy == "exact",
    )
    found = []
    for one in traits:
        call = CallPlan.of(w.op, config, str(one), arch, (launch,))
        call = replace(call, plan=replace(call.plan, decode_shape=int(few > 0)))
        found.append(KernelImage(name, call, ("k",), image([("k", [1])])))
    return found


PLAIN = (Traits(ragged=True), Traits(ragged=True, causal=True), Traits(ragged=True, lse=True))


def table_of(core: Core, entries: Sequence[Entry], kernels: dict[str, Kernels]) -> CoreTable:
    made = []
    for e in entries:
        mine = kernels[e.chosen.key]
        made += images(e.chosen.key, e.workload, mine.traits, mine.arch)
    for w in (Workload(1, 1, 1, 1, 1, 64, dtype) for dtype in DType):
        made += images(DEFAULT, w, PLAIN)
        for name, rows in FEW.items():
            made += images(name, w, PLAIN, few=rows)
    rows = [entry(e.gpu.name, e.workload, e.chosen.key) for e in entries]
    return CoreTable(core, made, rows, [*FEW, DEFAULT])


def default_of(w: Workload) -> str:
    """The first default that is for such a problem, if any is."""
    kind = (w.d_head, w.d_v, w.kv_e4m3, w.accuracy)
    if kind != (64, 64, False, "fast") or traits_of(w) not in PLAIN:
        return ""
    rows = w.rows_of_kv_head
    few = (name for name, tile in FEW.items() if tile <= 16 or tile < 2 * rows)
    return next(few) if w.decode_shape else DEFAULT


def expected(
    registry: Registry, workload: Workload, kernels: dict[str, Kernels]
) -> tuple[str, str]:
    """What is to be found, and how."""
    skipped = ""
    found = matches(registry, Target(GPUS[0]), workload)
    for match in near_enough(found, workload):
        if kernels[match.entry.chosen.key].compute(workload):
            return match.entry.chosen.key, skipped or ("exact" if match.exact else "nearest")
        skipped = "passed over"
    if name := default_of(workload):
        return name, "default" if name == DEFAULT else "default of few"
    for match in found:
        if kernels[match.entry.chosen.key].compute(workload):
            alike = match.entry.workload.decode_shape == workload.decode_shape
            return match.entry.chosen.key, "afar" if alike else "of other rows"
    return "", "none"


def main(library: str, registry: str, count: str, seed: str) -> None:
    dice, core = random.Random(int(seed)), Core(Path(library))
    (like, *_) = registry_file.load(registry).entries
    seen: Counter[str] = Counter()
    for _ in range(int(count)):
        entries = some_registry(dice, like)
        kernels = some_kernels(dice, entries.entries)
        table = table_of(core, in_order(entries.entries), kernels)
        asked = [some_workload(dice) for _ in range(PROBLEMS)]
        asked += [e.workload for e in entries.entries]
        for workload in [*asked, *asked]:  # the second time from what it remembers
            config, how = expected(entries, workload, kernels)
            try:
                found = table.find(workload)
            except NoUsableVariant:
                found = ""
            assert found == config, f"{workload.key}: {found}, not {config} ({how})"
            seen[how] += 1
            seen["packed"] += workload.packed
            seen["e4m3"] += workload.kv_e4m3
            seen["cached"] += workload.cached
            seen["special"] += not workload.is_plain
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
