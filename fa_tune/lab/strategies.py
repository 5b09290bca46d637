"""Strategies side by side on recorded spaces, with random search calculated."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fa_tune.core.options import Progress
from fa_tune.lab import kernel_tuner, replay
from fa_tune.lab.replay import Score
from fa_tune.lab.space_table import RecordedWorkload, find, load, recorded
from fa_tune.search.strategies import USES_PRIORS
from fa_tune.search.strategies.base import Space
from fa_tune.search.strategies.transfer import Prior, with_prior

TOLD, HIDDEN, BOTH = "told", "hidden", "both"  # the default config, to our strategies
SLOW = "optuna-"  # begins the names of those that take longer
BLIND = " (blind)"  # after a strategy's name, where both are compared
TRANSFER = " + others"  # and where it knows what other workloads took


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how often.

    `strategies` are fa-tune's, `kernel_tuner` Kernel Tuner's; `default` says whether ours are
    told the default config (Kernel Tuner's never are); `external_seeds` runs of Kernel Tuner's and
    Optuna's, which take longer (None: `seeds`); `limit` measurements at most per run; `batch`
    points are proposed at a time (Kernel Tuner always decides one by one); `jobs` processes.
    """

    strategies: tuple[str, ...]
    kernel_tuner: tuple[str, ...] = ()
    default: str = TOLD
    seeds: int = 100
    external_seeds: int | None = None
    limit: int = 200
    batch: int = 1
    jobs: int = 1
    lenient: bool = False  # leave out what Kernel Tuner cannot run, instead of ending


def compare(
    recorded: RecordedWorkload, plan: Comparison, watcher: Progress, known: Sequence[Prior] = ()
) -> list[Score]:
    """One score per strategy on one space, random search first.  With `known` those that can
    learn from other workloads run once more, with that.

    Raises InvalidConfig and ToolMissing as the strategies do.
    """
    external_seeds = plan.external_seeds or plan.seeds
    seeds = {n: external_seeds if n.startswith(SLOW) else plan.seeds for n in plan.strategies}
    learning = {n: count for n, count in seeds.items() if n in USES_PRIORS and known}
    blind = without_start(recorded)
    spaces = {
        TOLD: {"": recorded},
        HIDDEN: {"": blind},
        BOTH: {"": recorded, BLIND: blind},
    }[plan.default]
    runs = [(suffix, space, seeds) for suffix, space in spaces.items()]
    if learning:
        informed = with_prior(recorded.space, known).expected
        for suffix, space in spaces.items():
            more = dataclasses.replace(space.space, expected=informed)
            runs.append((suffix + TRANSFER, dataclasses.replace(space, space=more), learning))
    watcher.stage(
        recorded.name,
        sum(sum(counts.values()) for _, _, counts in runs)
        + len(plan.kernel_tuner) * external_seeds,
    )
    baseline = replay.random_score(recorded, plan.limit)
    orders: dict[str, list[replay.Order]] = {}
    for suffix, space, counts in runs:
        found = replay.replay_strategies(
            space,
            counts,
            limit=plan.limit,
            batch=plan.batch,
            jobs=plan.jobs,
            on_order=watcher.advance,
        )
        orders |= {f"{name}{suffix}": order for name, order in found.items()}
    if plan.kernel_tuner:
        orders |= kernel_tuner.replay(
            recorded,
            plan.kernel_tuner,
            seeds=external_seeds,
            limit=plan.limit,
            jobs=plan.jobs,
            on_order=watcher.advance,
            on_refusal=watcher.warn if plan.lenient else None,
        )
    scores = [replay.score(recorded, n, o, plan.limit, baseline) for n, o in orders.items()]
    return [baseline, *scores]


def priors_from(recorded: RecordedWorkload, others: Sequence[RecordedWorkload]) -> list[Prior]:
    """What `others` hold of other workloads than this one's; nothing of its own."""
    own = recorded.rows[0].workload
    return [
        Prior(other.name, other.space.points, other.times_s)
        for other in others
        if other.rows[0].workload != own
    ]


def priors_in(places: Sequence[Path]) -> list[Prior]:
    """What the recorded spaces in `places` (files or folders) hold; raises what `find` and `load`
    raise."""
    return [
        Prior(space.name, space.space.points, space.times_s, table.meta.device.name)
        for table in map(load, find(places))
        if table.meta.device is not None
        for space in recorded(table)
    ]


def without_start(recorded: RecordedWorkload) -> RecordedWorkload:
    """The same space where no strategy is told the default config."""
    return RecordedWorkload(recorded.name, Space(recorded.space.points), recorded.rows)


def headline(recorded: RecordedWorkload, default: str = TOLD) -> str:
    """The space in a line: how many points, how many ran, the best time, the default's share
    unless it is hidden."""
    times = recorded.times_s
    ran = sum(t is not None for t in times)
    text = f"{recorded.name}: {len(times)} configs, {ran} ran, the best takes "
    text += f"{1e3 * recorded.best_s:#.4g}".rstrip(".") + " ms"
    start = [times[i] for i in recorded.space.start] if default != HIDDEN else []
    if start and start[0] is not None:
        text += (
            f"; the default, measured first, reaches {100 * recorded.best_s / start[0]:.1f} % of it"
        )
    return text


def closing(plan: Comparison) -> str:
    """What the numbers are, below the tables."""
    text = f"Measurements needed by half and by nine tenths of {plan.seeds} runs"
    if plan.external_seeds not in (None, plan.seeds):
        text += f" ({plan.external_seeds} of Kernel Tuner's and Optuna's)"
    if plan.kernel_tuner:
        text += f"; KT: Kernel Tuner {kernel_tuner.version()}"
    return f"{text}; batches of {plan.batch}."


def cells(score: Score) -> list[str]:
    """The row of a score: strategy, `median / 90th percentile` per level, where it is behind."""
    row = [score.strategy]
    for level in replay.LEVELS:
        row.append(" / ".join(_count(n, score.limit) for n in score.needed[level]))
    return [*row, "" if score.strategy == replay.RANDOM else ranges(score.behind)]


def headings(limit: int) -> list[str]:
    """Headings of the columns that `cells` fills."""
    levels = [f"{100 * level:.0f} %" for level in replay.LEVELS]
    return ["strategy", *levels, f"behind random, of {limit}"]


def ranges(numbers: Sequence[int]) -> str:
    """`1-4, 9`; `never` for none."""
    parts: list[list[int]] = []
    for n in numbers:
        if parts and parts[-1][-1] == n - 1:
            parts[-1][1:] = [n]
        else:
            parts.append([n])
    return ", ".join("-".join(map(str, part)) for part in parts) or "never"


def _count(needed: int | None, limit: int) -> str:
    return f">{limit}" if needed is None else str(needed)
