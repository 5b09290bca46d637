"""What a strategy that skips most of a space may have missed.

A random sample of the skipped points is measured beside the finalists.  Its fastest point bounds
the regret seen; the sample's size bounds what was not seen.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import comb

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Audit:
    """The result.  `regret` is the fraction of time that the fastest audited point saves over
    the choice, 0 where none is faster.  `faster` of `measured` points beat the choice;
    `most_faster` is the share of the skipped points that may beat it, at 95 % confidence."""

    skipped: int
    measured: int
    failed: int
    faster: int
    regret: float
    fastest: str
    most_faster: float

    @property
    def sentence(self) -> str:
        if not self.skipped:
            return "nothing was skipped"
        if not self.measured:
            return f"none of the {self.skipped} skipped configs was audited"
        found = (
            f"the fastest of them, {self.fastest}, takes {100 * self.regret:.2f} % less time"
            if self.faster
            else "none is faster"
        )
        return (
            f"audit of {self.measured} of {self.skipped} skipped configs: {found} than the "
            "fastest that the strategy found; at 95 % confidence at most "
            f"{100 * self.most_faster:.1f} % of those skipped are faster"
        )


def sample(skipped: Iterable[int], n: int, seed: int) -> list[int]:
    """At most `n` of the skipped points, the same ones for the same seed."""
    among = sorted(skipped)
    return sorted(random.Random(f"audit:{seed}").sample(among, min(n, len(among))))


def judge(chosen_s: float, times_s: Mapping[str, float | None], n_skipped: int) -> Audit:
    """`chosen_s` is the choice's time, `times_s` the audited points' by key, None: failed;
    all from the same rounds."""
    ran = {key: t for key, t in times_s.items() if t is not None}
    faster = [key for key, t in ran.items() if t < chosen_s]
    fastest = min(ran, key=lambda key: (ran[key], key), default="")
    return Audit(
        skipped=n_skipped,
        measured=len(times_s),
        failed=len(times_s) - len(ran),
        faster=len(faster),
        regret=max(0.0, 1.0 - ran[fastest] / chosen_s) if ran else 0.0,
        fastest=fastest,
        most_faster=upper_share(n_skipped, len(times_s), len(faster)) if times_s else 1.0,
    )


def upper_share(population: int, drawn: int, hits: int) -> float:
    """The largest share of hits in the population under which at most `hits` in a sample drawn
    without replacement still has a probability of 5 %."""
    whole = comb(population, drawn)
    low, high = hits, population - (drawn - hits)
    while low < high:
        middle = (low + high + 1) // 2
        few = sum(comb(middle, k) * comb(population - middle, drawn - k) for k in range(hits + 1))
        low, high = (middle, high) if few / whole >= 1 - CONFIDENCE else (low, middle - 1)
    return low / population
