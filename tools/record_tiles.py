"""Time ways to divide tiles among CTAs.

    python tools/record_tiles.py many|few OUT.tsv [--random N] [--seconds 500]

many    tiles of 16 rows: the configs of `decode`'s `sets.of_whole_tiles` and what rules find
few     tiles of many rows, few for the device: the configs of sm90's `few_tiles.candidates`,
        persistent CTAs and `decode`

Beside them cuDNN, or with few tiles FlashAttention 2, on a grid of problems or on random ones
(`few`: always): medians of rounds in random order, cold L2.  What is far behind after some rounds
is left out.  A line that begins with `configs` names the columns of the problems below it; times
are microseconds.  `tools/fit_many_tiles.py` and `tools/fit_few_tiles.py` make defaults of it.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click

from fa_tune import families
from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import DType, Workload
from fa_tune.families.base import Config
from fa_tune.families.decode import defaults
from fa_tune.families.decode.bounds import bounds_of
from fa_tune.families.decode.sets import of_whole_tiles
from fa_tune.families.decode.tiles import Heads
from fa_tune.families.sm90 import defaults as sm90_defaults
from fa_tune.families.sm90 import few_tiles
from fa_tune.gpu.guard import use_device
from fa_tune.gpu.jobs.time_events import warm_up
from fa_tune.tune.session import open_machine
from fit_many_tiles import LIBRARY, RULES
from record_models import compiled, samples

MULTIPROCESSORS = limits((9, 0)).multiprocessors
D_HEADS = (*range(32, 129, 8), 144, 160, 192, 256)
# Batch elements and heads of K and V: 1 to 24 tiles for each multiprocessor of an H200.
TILES = (
    *((33, 4), (20, 8), (18, 11), (20, 12), (33, 8), (25, 12), (35, 10), (33, 12), (55, 8)),
    *((50, 10), (33, 16), (35, 16), (80, 8), (46, 16), (110, 8), (110, 10), (110, 12), (50, 32)),
    *((64, 32), (100, 32)),
)
KEYS = ((100, 400, 1300, 4500), (200, 700, 2500, 8000))  # of every other number of tiles
MOST_BYTES = 3.2e9  # of K and V
FEW_D_HEADS = (64, 64, 80, 96, 112, 128, 128, 128, 192, 256)
SHORT_SHARE = 0.35
MOST_FEW, MOST_WORK = 400, 5e11  # tiles of 128 rows; a quarter of the operations
GROUP = 4  # queries for a head of K and V in every other problem of whole lines


def grid() -> Iterator[Workload]:
    """Problems of many tiles."""
    for d_head, (number, (batch, kv_heads)) in itertools.product(D_HEADS, enumerate(TILES)):
        for place, keys in enumerate(KEYS[number % len(KEYS)]):
            group = GROUP if d_head % 64 == 0 and (number + place) % 2 else 1
            if 4 * batch * kv_heads * keys * d_head <= MOST_BYTES:
                yield _workload(batch, kv_heads, group, keys, d_head)


def many(number: int) -> Iterator[Workload]:
    """The grid, or random problems, between those of the grid and somewhat beyond."""
    if not number:
        yield from grid()
    dice = random.Random(number)
    while number:
        kv_heads = dice.choice((1, 2, 4, 6, 8, 12, 16, 20, 32))
        batch = math.ceil(MULTIPROCESSORS * 2 ** dice.uniform(0, 5) / kv_heads)
        keys, d_head = int(50 * 2 ** dice.uniform(0, 8)), dice.choice((*D_HEADS, 64, 128, 128))
        if 4 * batch * kv_heads * keys * d_head <= MOST_BYTES:
            number -= 1
            yield _workload(batch, kv_heads, dice.choice((1, 1, 4, 8)), keys, d_head)


def few(number: int) -> Iterator[Workload]:
    """Random problems of few tiles: short ones of some heads, and few queries with many keys."""
    dice = random.Random(number)
    while number:
        d_head, short = dice.choice(FEW_D_HEADS), dice.random() < SHORT_SHARE
        queries = _log_uniform(dice, *((16, 400) if short else (20, 3000)))
        keys = _log_uniform(dice, 16, 600) if short else _log_uniform(dice, max(400, queries), 6e4)
        kv_heads = _log_uniform(dice, 1, 24 if short else 12)
        heads = kv_heads * dice.choice((1, 1, 2, 4))
        tiles = _log_uniform(dice, 2, 300)
        batch = max(1, round(tiles / heads / math.ceil(queries / 128)))
        work = batch * heads * queries * keys * d_head
        if batch * heads * math.ceil(queries / 128) > MOST_FEW or work > MOST_WORK:
            continue
        causal = dice.random() < 0.5 and queries <= keys
        sizes = (batch, heads, kv_heads, queries, keys, d_head, DType.BF16)
        number -= 1
        yield Workload(*sizes, causal=causal, bottom_right=causal and queries != keys)


def _log_uniform(dice: random.Random, least: float, most: float) -> int:
    return int(least * (most / least) ** dice.random())


def _workload(batch: int, kv_heads: int, group: int, keys: int, d_head: int) -> Workload:
    return Workload(batch, kv_heads * group, kv_heads, 1, keys, d_head, DType.BF16)


def of_many(workload: Workload, arch: ArchLimits) -> Mapping[str, Config]:
    """What is recorded of a workload of many tiles."""
    w, bounds = workload, bounds_of(arch.compute_capability)
    found = {str(c): c for c in of_whole_tiles(Heads(w.d_head), w.dtype)}
    return found | {RULES: defaults.by_rules(w, arch, bounds)}


def of_few(workload: Workload, arch: ArchLimits) -> Mapping[str, Config]:
    """The same of few; clusters where they have no more than twice the room that there is."""
    w, decode = workload, families.get("decode")
    found: dict[str, Config] = {few_tiles.PERSISTENT: sm90_defaults.default_for(w)}
    if decode.suits(w):
        found[few_tiles.DECODE] = decode.default_for(w, arch)
    every = few_tiles.candidates(sm90_defaults.default_config(w.d_head, w.dtype))
    fitting = (c for c in every if few_tiles.suits(c, w, arch.multiprocessors))
    return found | {str(config): config for config in fitting}


Candidates = Callable[[Workload, ArchLimits], Mapping[str, Config]]
KINDS: Mapping[str, tuple[Callable[[int], Iterator[Workload]], Candidates, str]] = {
    "many": (many, of_many, LIBRARY),
    "few": (few, of_few, "fa2"),
}


@click.command(help=__doc__)
@click.argument("kind", type=click.Choice(tuple(KINDS)))
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--random", "number", default=0)
@click.option("--seconds", default=500.0)
def main(kind: str, out: Path, number: int, seconds: float) -> None:
    """See above."""
    draw, candidates, library = KINDS[kind]
    wanted = sorted(draw(number), key=lambda w: (w.d_head, w.causal))
    began, machine = time.monotonic(), open_machine(MachineOptions(), Silent())
    own = {
        w: {
            name: config
            for name, config in candidates(w, machine.limits).items()
            if families.constraints(config, machine.limits) is None
        }
        for w in wanted
    }
    kernels = compiled(((w, c) for w in own for c in own[w].values()), machine)
    print(f"{len(own)} problems, compiled after {time.monotonic() - began:.0f} s", flush=True)
    use_device(0)
    warm_up()
    columns: list[str] = []
    with out.open("a", encoding="utf-8") as file:
        for workload, configs in own.items():
            if time.monotonic() - began > seconds:
                break
            if columns != (columns := [*configs, library]):
                print("configs", *columns, sep="\t", file=file)
            made = {n: kernels.get((workload, c)) for n, c in configs.items()}
            artifacts = {n: artifact for n, artifact in made.items() if artifact is not None}
            found = samples(workload, artifacts, [library], leave_out=True)
            cells = [
                f"{1e6 * statistics.median(found[c]):.2f}" if found.get(c) else "" for c in columns
            ]
            print(workload.key, *cells, sep="\t", file=file, flush=True)
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
