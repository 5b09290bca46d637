"""What random search does on a space, calculated.

Drawing without replacement from N points of which G are good enough, none of the first k is
good with probability C(N − G, k) / C(N, k).  No simulation, no seeds.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

ROUNDING = 1e-12


def draws_needed(n_points: int, n_good: int, probability: float) -> int | None:
    """The fewest draws after which a good point has been found with that probability; None
    without good points."""
    if n_good <= 0:
        return None
    missed = 1.0
    for k in range(1, n_points - n_good + 1):
        missed *= (n_points - n_good - (k - 1)) / (n_points - (k - 1))
        if 1.0 - missed >= probability - ROUNDING:
            return k
    return n_points - n_good + 1  # by now only good ones are left


def best_after(times_s: Sequence[float | None], draws: int, probability: float) -> float:
    """The time in seconds that the best of `draws` random points reaches with that
    probability; infinite where the draws are too likely to be all failures."""
    ran = sorted(t for t in times_s if t is not None)
    n = len(times_s)

    def found(n_good: int) -> float:
        if draws > n - n_good:
            return 1.0
        missed = _log_choose(n - n_good, draws) - _log_choose(n, draws)
        return 1.0 - math.exp(missed)

    needed = bisect.bisect_left(range(1, len(ran) + 1), probability - ROUNDING, key=found)
    return ran[needed] if needed < len(ran) else math.inf


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
