"""How CTAs are best given tiles of 16 rows, from one for a multiprocessor on, that all have as many
keys, as it was measured on an H200: benchmarks/many_tiles_h200.tsv.

`tools/fit_many_tiles.py` writes `many_tiles.csv`: for each problem the way that was fastest there
and near there, with no CTA for a multiprocessor where what the rules of `defaults` find was.
"""

from __future__ import annotations

import csv
from functools import cache
from math import ceil, log
from pathlib import Path
from typing import NamedTuple

from fa_tune.families.decode.config import MMA_K
from fa_tune.families.plan import TileOrder

PATH = Path(__file__).with_name("many_tiles.csv")
MOST_CTAS = 4  # of a multiprocessor


class Way(NamedTuple):
    """CTAs of a multiprocessor, which tiles they have, and whether launches overlap."""

    ctas_per_sm: int
    order: TileOrder = TileOrder.SHARES
    dependent: bool = False


RULES = Way(0)


class Point(NamedTuple):
    """Tiles for a multiprocessor, and the keys of each."""

    tiles_per_sm: float
    keys: int

    def distance(self, other: Point) -> float:
        """How unlike they are.  What counts most is for how long CTAs have no tile that have whole
        ones, of any number of CTAs for a multiprocessor."""
        tiles = abs(log(self.tiles_per_sm / other.tiles_per_sm))
        keys = abs(log(self.keys / other.keys))
        waits = (
            abs(log(self._rounds(ctas) / other._rounds(ctas))) for ctas in range(1, MOST_CTAS + 1)
        )
        return tiles + keys / 2 + sum(waits) / 2

    def _rounds(self, ctas: int) -> float:
        """Rounds of so many CTAs for a multiprocessor, in times of those that tiles fill."""
        return ceil(self.tiles_per_sm / ctas - 1e-9) * ctas / self.tiles_per_sm


def fastest(d_head: int, here: Point) -> Way:
    """The fastest way of the nearest problem that was measured."""
    # Rows that are no whole sectors of 32 bytes are like one another.
    measured = _measured()
    nearest = min(measured, key=lambda d: ((d - d_head) % MMA_K, abs(d - d_head)))
    points = measured[nearest]
    return points[min(points, key=here.distance)]


@cache
def _measured() -> dict[int, dict[Point, Way]]:
    """The fastest way of each problem, by head dimension."""
    found: dict[int, dict[Point, Way]] = {}
    with PATH.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            point = Point(float(row["tiles_per_sm"]), int(row["keys"]))
            order = TileOrder[row["order"].upper()]
            way = Way(int(row["ctas_per_sm"]), order, row["dependent"] == "1")
            found.setdefault(int(row["d_head"]), {})[point] = way
    return found


def written(ways: dict[int, dict[Point, Way]]) -> str:
    """The text of the table that holds these."""
    lines = ["d_head,tiles_per_sm,keys,ctas_per_sm,order,dependent"]
    for d_head, points in sorted(ways.items()):
        for point, (ctas, order, dependent) in sorted(points.items()):
            cells = (d_head, *point, ctas, order.name.lower(), int(dependent))
            lines.append(",".join(map(str, cells)))
    return "\n".join(lines) + "\n"
