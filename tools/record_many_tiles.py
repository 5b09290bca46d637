"""Time many tiles of 16 rows in every way to divide them among CTAs.

    python tools/record_many_tiles.py OUT.tsv [--random N] [--seconds 500]

The configs of `sets.of_whole_tiles`, what rules find, and cuDNN, on a grid of problems or on N
random ones: medians of rounds in random order, cold L2.  What is far behind after some rounds is
left out.  A line that begins with `configs` names the columns of the problems below it; times are
microseconds.  `tools/fit_many_tiles.py` makes defaults of it.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import click

from fa_tune import families
from fa_tune.core.arch import ArchLimits, limits
from fa_tune.core.options import MachineOptions, Silent
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode import defaults
from fa_tune.families.decode.bounds import bounds_of
from fa_tune.families.decode.config import DecodeConfig
from fa_tune.families.decode.sets import of_whole_tiles
from fa_tune.families.decode.tiles import Heads
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
GROUP = 4  # queries for a head of K and V in every other problem of whole lines


def grid() -> Iterator[Workload]:
    """The problems of the table."""
    for d_head, (number, (batch, kv_heads)) in itertools.product(D_HEADS, enumerate(TILES)):
        for place, keys in enumerate(KEYS[number % len(KEYS)]):
            group = GROUP if d_head % 64 == 0 and (number + place) % 2 else 1
            if 4 * batch * kv_heads * keys * d_head <= MOST_BYTES:
                yield _workload(batch, kv_heads, group, keys, d_head)


def drawn(number: int) -> Iterator[Workload]:
    """Random problems, between those of the table and somewhat beyond."""
    dice = random.Random(number)
    while number:
        kv_heads = dice.choice((1, 2, 4, 6, 8, 12, 16, 20, 32))
        batch = math.ceil(MULTIPROCESSORS * 2 ** dice.uniform(0, 5) / kv_heads)
        keys, d_head = int(50 * 2 ** dice.uniform(0, 8)), dice.choice((*D_HEADS, 64, 128, 128))
        if 4 * batch * kv_heads * keys * d_head <= MOST_BYTES:
            number -= 1
            yield _workload(batch, kv_heads, dice.choice((1, 1, 4, 8)), keys, d_head)


def _workload(batch: int, kv_heads: int, group: int, keys: int, d_head: int) -> Workload:
    return Workload(batch, kv_heads * group, kv_heads, 1, keys, d_head, DType.BF16)


def candidates(workload: Workload, arch: ArchLimits) -> dict[str, DecodeConfig]:
    """What is recorded of a workload."""
    w, bounds = workload, bounds_of(arch.compute_capability)
    found = {str(c): c for c in of_whole_tiles(Heads(w.d_head), w.dtype)}
    found[RULES] = defaults.by_rules(w, arch, bounds)
    return {name: c for name, c in found.items() if families.constraints(c, arch) is None}


@click.command(help=__doc__)
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--random", "number", default=0)
@click.option("--seconds", default=500.0)
def main(out: Path, number: int, seconds: float) -> None:
    """See above."""
    wanted = sorted(drawn(number) if number else grid(), key=lambda w: w.d_head)
    began, machine = time.monotonic(), open_machine(MachineOptions(), Silent())
    own = {w: candidates(w, machine.limits) for w in wanted}
    kernels = compiled(((w, c) for w in own for c in own[w].values()), machine)
    print(f"{len(own)} problems, compiled after {time.monotonic() - began:.0f} s", flush=True)
    use_device(0)
    warm_up()
    columns: list[str] = []
    with out.open("a", encoding="utf-8") as file:
        for workload, configs in own.items():
            if time.monotonic() - began > seconds:
                break
            if columns != (columns := [*configs, LIBRARY]):
                print("configs", *columns, sep="\t", file=file)
            made = {n: kernels.get((workload, c)) for n, c in configs.items()}
            artifacts = {n: artifact for n, artifact in made.items() if artifact is not None}
            found = samples(workload, artifacts, [LIBRARY], leave_out=True)
            cells = [
                f"{1e6 * statistics.median(found[c]):.2f}" if found.get(c) else "" for c in columns
            ]
            print(workload.key, *cells, sep="\t", file=file, flush=True)
    print(f"ended after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
