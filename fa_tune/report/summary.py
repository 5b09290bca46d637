"""Who won, workload by workload, in plain words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fa_tune.core import units
from fa_tune.core.model import Outcome
from fa_tune.store.table.rows import Group, Row, best, grouped, paces

NEAR = 1.01  # within one per cent: two runs of one kernel differ by as much


@dataclass(frozen=True)
class GroupSummary:
    """One workload's result: the fastest of ours, None if none has a time, and at most four
    sentences, without line breaks."""

    winner: Row | None
    sentences: tuple[str, ...]


def summarise(rows: Iterable[Row]) -> list[GroupSummary]:
    """A summary per workload, method and recording that holds any of ours."""
    found = []
    for group, members in grouped(rows).items():
        if ours := [row for row in members if row.is_variant]:
            winner = best(members)
            failed = Counter(row.outcome for row in ours if row.outcome is not Outcome.OK)
            lines = _of_times(group, members, winner)
            if failed:
                why = (f"{n} {what.replace('_', ' ')}" for what, n in sorted(failed.items()))
                lines.append(f"Without a result: {', '.join(why)}.")
            found.append(GroupSummary(winner, tuple(lines)))
    return found


def _of_times(group: Group, rows: Sequence[Row], winner: Row | None) -> list[str]:
    if winner is None or winner.rank_s is None:
        return [f"{group}: no config has a valid time."]
    pace = paces(rows)
    fastest = pace[id(winner)]
    times = [pace[id(row)] for row in rows if row.is_variant and id(row) in pace]
    rates = [f"{winner.matmul_tflops:.0f} TFLOP/s"] if winner.matmul_tflops else []
    rates += [f"{winner.bytes_per_s / 1e9:.0f} GB/s"] if winner.bytes_per_s else []
    rate = f" ({', '.join(rates)})" if rates else ""
    lines = [
        f"{group}: the fastest of {counted(len(times), 'config')} is {winner.kernel} at "
        f"{units.format_seconds(winner.rank_s)}{rate}."
    ]
    near = sum(time <= fastest * NEAR for time in times) - 1
    if near:
        lines.append(f"{counted(near, 'other')} {'is' if near == 1 else 'are'} within 1 % of it.")
    over: dict[str, float] = {}  # its speed over each reference's
    for row in rows:
        if row.is_reference and id(row) in pace:
            over.setdefault(row.kernel, pace[id(row)] / fastest)
    if over:
        hardest = min(over.values()) if len(over) > 1 else 0.0
        said = (
            f"{v:.2f}x that of {k}" + (" (the fastest of them)" if v == hardest else "")
            for k, v in over.items()
        )
        lines.append(f"Its speed is {', '.join(said)}.")
    return lines


def counted(n: int, noun: str) -> str:
    """`1 config`, `2 configs`."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
