"""Replaying strategies on a recorded space: how many measurements until one is good enough.

A measurement answers with the recorded median; a failure costs one measurement like any other.
"Good" at 95 % means that the fastest recorded time is at least 95 % of the found one's.
"""

from __future__ import annotations

import bisect
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fa_tune.lab.processes import mapped
from fa_tune.lab.space_table import RecordedWorkload
from fa_tune.search.strategies import create
from fa_tune.search.strategies.base import Observation

LEVELS = (0.95, 0.98, 0.99)
MEDIAN, UNLUCKY = 0.5, 0.9
RANDOM = "random (calculated)"

Order = Sequence[int]  # indices of points in the order they were measured


@dataclass(frozen=True)
class Score:
    """One strategy on one space.

    `needed` by level: (at the median, at the 90th percentile) measurements over the seeds,
    None where more than `limit` were needed.  `curve` by quantile: the share of the best
    reached after 1, 2, … measurements.  `behind` are the budgets at which the curve is below
    random search's at the same quantile.
    """

    space: str
    strategy: str
    n_points: int
    n_seeds: int
    limit: int
    needed: dict[float, tuple[int | None, int | None]]
    curve: dict[float, tuple[float, ...]]
    behind: tuple[int, ...] = ()


def random_score(recorded: RecordedWorkload, limit: int) -> Score:
    """Random search, calculated."""
    times, best = recorded.times_s, recorded.best_s
    needed: dict[float, tuple[int | None, int | None]] = {}
    for level in LEVELS:
        good = sum(t is not None and best / t >= level for t in times)
        median, unlucky = (draws_needed(len(times), good, p) for p in (MEDIAN, UNLUCKY))
        needed[level] = median, unlucky
    draws = range(1, min(limit, len(times)) + 1)
    curve = {p: tuple(best / best_after(times, k, p) for k in draws) for p in (MEDIAN, UNLUCKY)}
    return Score(recorded.name, RANDOM, len(times), 0, limit, needed, curve)


def score(
    recorded: RecordedWorkload, strategy: str, orders: Sequence[Order], limit: int, baseline: Score
) -> Score:
    """What the orders of one strategy, one per seed, amount to."""
    times, best = recorded.times_s, recorded.best_s
    runs = [_shares([times[i] for i in order], best, limit) for order in orders]
    needed = {}
    for level in LEVELS:
        firsts = sorted(
            next((k for k, share in enumerate(run, 1) if share >= level), math.inf) for run in runs
        )
        median, unlucky = (_whole(_rank(firsts, p)) for p in (MEDIAN, UNLUCKY))
        needed[level] = median, unlucky
    length = min(limit, len(times))
    # The share that all but the unluckiest tenth reach: ranks from the top.
    columns = [sorted((run[k] for run in runs), reverse=True) for k in range(length)]
    curve = {p: tuple(_rank(column, p) for column in columns) for p in (MEDIAN, UNLUCKY)}
    behind = tuple(
        k + 1
        for k in range(length)
        if any(curve[p][k] < baseline.curve[p][k] - 1e-9 for p in (MEDIAN, UNLUCKY))
    )
    return Score(recorded.name, strategy, len(times), len(orders), limit, needed, curve, behind)


def order_of(
    recorded: RecordedWorkload, strategy: str, seed: int, limit: int, batch: int
) -> list[int]:
    """What a strategy measures, up to `limit` points or until it has found the best."""
    times, best = recorded.times_s, recorded.best_s
    searcher = create(strategy, recorded.space, seed)
    order: list[int] = []
    while len(order) < limit:
        indices = searcher.propose(min(batch, limit - len(order)))
        if not indices:
            break
        order += indices
        searcher.observe([Observation(i, times[i]) for i in indices])
        if any(times[i] == best for i in indices):
            break  # nothing after this changes the score
    return order


def replay_strategies(
    recorded: RecordedWorkload,
    seeds: Mapping[str, int],
    *,
    limit: int,
    batch: int,
    jobs: int,
    on_order: Callable[[], object] = lambda: None,
) -> dict[str, list[Order]]:
    """The orders of every strategy, by its name one per seed 0, 1, … below `seeds`, in `jobs`
    processes; `on_order` is called after each."""
    tasks = [(name, seed) for name, count in seeds.items() for seed in range(count)]
    orders: dict[str, list[Order]] = {name: [] for name, _ in tasks}
    if jobs == 1 or len(tasks) == 1:
        for name, seed in tasks:
            orders[name].append(order_of(recorded, name, seed, limit, batch))
            on_order()
        return orders
    found = mapped(_task, tasks, jobs=jobs, chunk=2, begin=_begin, common=(recorded, limit, batch))
    with contextlib.closing(found):
        for (name, _), order in zip(tasks, found, strict=True):
            orders[name].append(order)
            on_order()
    return orders


_shared: tuple[RecordedWorkload, int, int]


def _begin(recorded: RecordedWorkload, limit: int, batch: int) -> None:
    """In a child: what all tasks have in common travels once."""
    global _shared
    _shared = recorded, limit, batch


def _task(task: tuple[str, int]) -> list[int]:
    recorded, limit, batch = _shared
    return order_of(recorded, *task, limit, batch)


def _shares(times: Sequence[float | None], best: float, limit: int) -> list[float]:
    """The share of the best reached after each measurement, carried on to `limit`."""
    shares: list[float] = []
    found = math.inf
    for time in times[:limit]:
        found = min(found, math.inf if time is None else time)
        shares.append(best / found)
    return shares + [shares[-1] if shares else 0.0] * (limit - len(shares))


def _rank(ordered: Sequence[float], probability: float) -> float:
    """The value that at least this share of the ordered ones do not exceed in rank."""
    return ordered[min(len(ordered) - 1, math.ceil(probability * len(ordered) - 1e-9) - 1)]


def _whole(value: float) -> int | None:
    return None if math.isinf(value) else int(value)


# Random search, calculated: drawing without replacement from N points of which G are good enough,
# none of the first k is good with probability C(N - G, k) / C(N, k).  No simulation, no seeds.

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
