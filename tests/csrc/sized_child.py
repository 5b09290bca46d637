"""Random defaults by size and random problems through `export.sizes` and through the core's tables:
run with the stub in place of the driver.

Arguments: the core's library, how many tables, a seed.  Prints how many problems were found and how
many not, as JSON.
"""

import json
import random
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

from fa_tune.build.native import abi
from fa_tune.build.native.call import problem_of
from fa_tune.build.native.core import Core
from fa_tune.core.errors import NoUsableVariant
from fa_tune.core.workload import DType, Workload
from fa_tune.export.sizes import SizedDefault, nearest
from fa_tune.families.decode.config import DecodeConfig
from tests.csrc.lookup_child import PLAIN, images, traits_of
from tests.csrc.tables import CoreTable

PROBLEMS = 60  # for each table
STUB = 90  # its compute capability
RUNS = {"sm_90": True, "sm_80": False}


def some_workload(dice: random.Random) -> Workload:
    kv_heads, keys = dice.choice((1, 2, 3, 8, 40)), dice.choice((1, 99, 1000, 4096, 70_000))
    group, queries = dice.choice((1, 3, 8, 16, 71)), dice.choice((1, 2, 4, 9, 17, 100))
    found = Workload(
        *(dice.choice((1, 2, 5, 64)), kv_heads * group, kv_heads, queries, keys, 64),
        dice.choice(list(DType)),
        cache_lengths=dice.choice(("", "equal")),
        causal=queries > 1 and dice.random() < 0.5,
    )
    if found.causal:
        found = replace(found, bottom_right=dice.random() < 0.7)
    return found if dice.random() < 0.8 else replace(found, window_left=dice.choice((0, 500)))


def some_defaults(dice: random.Random) -> list[SizedDefault]:
    found = []
    while len(found) < 20:
        workload = replace(some_workload(dice), window_left=None)
        if not workload.decode_shape:
            continue
        config = DecodeConfig(workload.dtype, 64, 16, 64, 4, stages=2 + len(found))
        found.append(SizedDefault(dice.choice((75, 80, 90, 90, 90, 100)), workload, config))
    return found


def main(library: str, tables: str, seed: str) -> None:
    dice, core = random.Random(int(seed)), Core(Path(library))
    seen: Counter[str] = Counter()
    for _ in range(int(tables)):
        defaults = some_defaults(dice)
        arch = {d.key: dice.choice(("sm_90", "sm_90", "sm_80")) for d in defaults}
        made = [i for d in defaults for i in images(d.key, d.workload, PLAIN, arch[d.key], few=16)]
        rows = [
            abi.SizedDefault(d.compute_capability, problem_of(d.workload), d.key.encode())
            for d in defaults
        ]
        table = CoreTable(core, made, sized=rows)
        for _ in range(PROBLEMS):
            asked = some_workload(dice)
            able = [k for k in nearest(defaults, asked, STUB) if RUNS[arch[k]]]
            able = able if traits_of(asked) in PLAIN else []
            try:
                found = table.find(asked)
            except NoUsableVariant:
                found = ""
            assert found == (able[0] if able else ""), (asked.key, found, able)
            seen["found" if found else "none"] += 1
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
