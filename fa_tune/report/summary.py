"""Who won, workload by workload, in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fa_tune.core import units
from fa_tune.core.model import Outcome
from fa_tune.store.table.rows import Group, Row, best, grouped, paces

NEAR = 1.01  # within one per cent: two runs of one kernel differ by as much


@dataclass(frozen=True)
class GroupSummary:
    """One workload's result.

    `winner` is the fastest of ours, None if none has a time.  `speed_over` is
    reference time / winner time by reference label, so above 1 the winner is faster.
    `timed` and `failed` count ours; `near` those within 1 % of the winner, itself aside.
    """

    group: Group
    winner: Row | None
    speed_over: Mapping[str, float]
    timed: int
    near: int
    failed: Mapping[Outcome, int]


def summarise(rows: Iterable[Row]) -> list[GroupSummary]:
    """A summary per workload, method and recording that holds any of ours."""
    return [
        _summary(group, members)
        for group, members in grouped(rows).items()
        if any(row.is_variant for row in members)
    ]


def _summary(group: Group, rows: list[Row]) -> GroupSummary:
    ours = [row for row in rows if row.is_variant]
    winner = best(rows)
    pace = paces(rows)
    times = [pace[id(row)] for row in ours if id(row) in pace]
    speed_over: dict[str, float] = {}
    near = 0
    if winner is not None:
        fastest = pace[id(winner)]
        for row in rows:
            if row.is_reference and id(row) in pace and row.kernel not in speed_over:
                speed_over[row.kernel] = pace[id(row)] / fastest
        near = sum(time <= fastest * NEAR for time in times) - 1
    failed: Counter[Outcome] = Counter(row.outcome for row in ours)
    del failed[Outcome.OK]
    return GroupSummary(group, winner, speed_over, len(times), near, failed)


def sentences(summary: GroupSummary) -> list[str]:
    """The summary in at most four sentences, without line breaks."""
    found = summary.winner
    if found is None or found.rank_s is None:
        lines = [f"{summary.group}: no config has a valid time."]
    else:
        rates = [f"{found.matmul_tflops:.0f} TFLOP/s"] if found.matmul_tflops else []
        if found.bytes_per_s:
            rates.append(f"{found.bytes_per_s / 1e9:.0f} GB/s")
        rate = f" ({', '.join(rates)})" if rates else ""
        lines = [
            f"{summary.group}: the fastest of {_count(summary.timed, 'config')} is "
            f"{found.kernel} at {units.format_seconds(found.rank_s)}{rate}."
        ]
        if summary.near:
            verb = "is" if summary.near == 1 else "are"
            lines.append(f"{_count(summary.near, 'other')} {verb} within 1 % of it.")
        if summary.speed_over:
            lines.append(f"Its speed is {', '.join(against_each(summary.speed_over))}.")
    if summary.failed:
        why = ", ".join(
            f"{n} {outcome.replace('_', ' ')}" for outcome, n in sorted(summary.failed.items())
        )
        lines.append(f"Without a result: {why}.")
    return lines


def against_each(speed_over: Mapping[str, float], what: str = "that") -> list[str]:
    """`1.08x that of cuDNN (the fastest of them)`: a phrase per reference, by label."""
    hardest = min(speed_over.values(), default=0.0) if len(speed_over) > 1 else 0.0
    return [
        f"{v:.2f}x {what} of {k}" + (" (the fastest of them)" if v == hardest else "")
        for k, v in speed_over.items()
    ]


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
