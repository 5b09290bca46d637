"""Write the defaults of many tiles of 16 rows, `fa_tune/families/decode/many_tiles.csv`.

    python tools/fit_many_tiles.py [--check] [FILE…]

FILEs are recordings of tools/record_tiles.py, benchmarks/many_tiles_h200.tsv if not given.
For each problem the table has the way with the least mean loss of the problems near it: what it
takes longer than the fastest of each.  `--check` ends in status 1 where the table has another.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from fa_tune.core.arch import limits
from fa_tune.core.workload import DType, Workload
from fa_tune.families.decode import many_tiles
from fa_tune.families.decode.many_tiles import PATH, Point, Way, written
from fa_tune.families.decode.sets import of_whole_tiles
from fa_tune.families.decode.tiles import Heads

RECORDING = Path(__file__).parents[1] / "benchmarks" / "many_tiles_h200.tsv"
RULES, LIBRARY = "rules", "cudnn"
FAR = 1.5  # losses beyond these are as bad
NEAR = 0.6  # distance at which another problem counts a third
FAINT = 1e-3  # counts nothing


@dataclass(frozen=True)
class Problem:
    """What was recorded of a workload, in microseconds, by config."""

    workload: Workload
    times: Mapping[str, float]

    @property
    def point(self) -> Point:
        """Where it is in the table."""
        tiles = self.workload.batch * self.workload.kv_heads
        return Point(round(tiles / limits((9, 0)).multiprocessors, 2), self.workload.seq_len_kv)

    def losses(self, configs: Iterable[str]) -> list[float]:
        """The logarithm of how many times as long as the fastest each takes."""
        own = {c: t for c, t in self.times.items() if c != LIBRARY}
        least = min(own.values())
        return [math.log(min(own.get(c, math.inf) / least, FAR)) for c in configs]


def read(path: Path) -> list[Problem]:
    """The problems of a recording."""
    found, columns = [], [""]
    for line in path.read_text(encoding="utf-8").splitlines():
        if "\t" in line:
            first, *cells = line.split("\t")
            if first == "configs":
                columns = cells
                continue
            times = {c: float(cell) for c, cell in zip(columns, cells, strict=True) if cell}
            found.append(Problem(Workload.from_key(first), times))
    return found


def ways_of(d_head: int) -> dict[str, Way]:
    """The ways of a table, by the column of a recording."""
    configs = of_whole_tiles(Heads(d_head), DType.BF16)
    return {RULES: many_tiles.RULES} | {
        str(c): Way(c.ctas_per_sm, c.order, c.dependent) for c in configs
    }


def table(problems: Sequence[Problem]) -> dict[int, dict[Point, Way]]:
    """The way with the least mean loss near each problem."""
    found: dict[int, dict[Point, Way]] = {}
    for d_head in sorted({p.workload.d_head for p in problems}):
        ways = ways_of(d_head)
        losses = {p.point: p.losses(ways) for p in problems if p.workload.d_head == d_head}
        found[d_head] = {point: ways[_best(point, losses, ways)] for point in losses}
    return found


def _best(point: Point, losses: Mapping[Point, Sequence[float]], ways: Mapping[str, Way]) -> str:
    weights = {other: math.exp(-((point.distance(other) / NEAR) ** 2)) for other in losses}
    near = {other: weight for other, weight in weights.items() if weight > FAINT}
    sums = [sum(w * losses[p][n] for p, w in near.items()) for n in range(len(ways))]
    return list(ways)[sums.index(min(sums))]


@click.command(help=__doc__)
@click.argument("files", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--check", is_flag=True)
def main(files: Sequence[Path], check: bool) -> None:
    """See above."""
    text = written(table([problem for path in files or (RECORDING,) for problem in read(path)]))
    if not check:
        PATH.write_text(text, encoding="utf-8")
    elif text != PATH.read_text(encoding="utf-8"):
        sys.exit(f"{PATH} has another default; python tools/fit_many_tiles.py writes it")


if __name__ == "__main__":
    main()
