"""Measurements as `report` and `profile` show them, fitted to a terminal or in full."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fa_tune.commands.shared.output import say, tell
from fa_tune.core import units
from fa_tune.core.errors import one_line
from fa_tune.core.model import Outcome
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import write
from fa_tune.report.summary import summarise
from fa_tune.report.tables import rest_of, within_limit
from fa_tune.report.wrap import terminal_width, wrapped
from fa_tune.store.table.rows import Row, best, grouped, paces

FITTED_LIMIT = 10  # rows per table, beside the references
FASTEST = "*"
KEY = "x: time over the fastest's, paired where the rounds are known"
STARRED_KEY = f"{FASTEST} fastest of ours; {KEY}"
_HEADINGS = (
    *("", "kernel", "time", "x", "TFLOP/s", "GB/s", "cycles", "GHz", "regs", "L2 %", "n"),
    "outcome",
)
_LEFT = ("", "kernel", "outcome")
_SPARE = ("GHz", "cycles", "n", "regs", "L2 %", "TFLOP/s")


def show_rows(rows: Sequence[Row], limit: int | None, *, wide: bool, summed_up: bool) -> Legend:
    """A table per workload on standard output, and with `summed_up` a summary of each in words;
    `wide`: every column, with configs in full.  Returns the configs' numbers."""
    legend = Legend()
    if wide:
        write(rows, "table", sys.stdout, limit=limit)
        for i, summary in enumerate(summarise(rows) if summed_up else ()):
            say(("" if i else "\n") + " ".join(summary.sentences))
        return legend
    width = terminal_width()
    for group, members in grouped(rows).items():
        tell(str(group))
        say("\n".join([*_table(members, legend, limit or FITTED_LIMIT, width), ""]))
    if not all(row.is_reference for row in rows):
        tell(STARRED_KEY if best(rows) is not None else KEY)
        say("\n".join(legend.lines(width)))
    for i, summary in enumerate(summarise(rows) if summed_up else ()):
        own = [subject_of(summary.winner)] if summary.winner is not None else []
        text = legend.numbered(" ".join(summary.sentences), own)
        say(("" if i else "\n") + wrapped(text, width))
    return legend


def subject_of(row: Row) -> str:
    """`family:config`."""
    return f"{row.family}:{row.kernel}"


def _table(rows: Sequence[Row], legend: Legend, limit: int, width: int) -> list[str]:
    """The references and `limit` of the others, the fastest among them, in the order given; under
    them why one has no time."""
    winner = best(rows)
    shown = within_limit(rows, limit, winner)
    pace = paces(rows)
    fastest = pace[id(winner)] if winner is not None else min(pace.values(), default=0.0)
    repeated = any((row.n or 0) > 1 for row in shown)
    cells = []
    why: dict[str, list[str]] = {}  # whose, by the reason
    for row in shown:
        name = row.kernel if row.is_reference else legend.number(subject_of(row))
        mark = FASTEST if row is winner else ""
        ratio = pace[id(row)] / fastest if id(row) in pace and fastest else None
        shown_of = figures(row, row.rank_s, ratio)
        shown_of["n"] = shown_of["n"] if repeated else ""
        shown_of["outcome"] = "" if row.outcome is Outcome.OK else row.outcome.replace("_", " ")
        cells.append([mark, name, *(shown_of[heading] for heading in _HEADINGS[2:])])
        if row.reason:
            why.setdefault(one_line(row.reason), []).append(name)
    lines = fitted(_HEADINGS, cells, width, left=_LEFT, spare=_SPARE)
    if rest := rest_of(rows, shown):
        lines.append(f"  {rest} (--limit, --wide)")
    texts = (f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in why.items())
    return [*lines, *(wrapped(text, width) for text in texts)]


def gigabytes(bytes_per_s: float | None) -> str:
    """GB/s of what is read and written where memory may be the limit, else nothing."""
    return f"{bytes_per_s / 1e9:.0f}" if bytes_per_s else ""


def figures(row: Row, seconds: float | None, ratio: float | None) -> dict[str, str]:
    """Cells by their headings; what is missing is empty."""
    return {
        "time": "" if seconds is None else units.aligned_seconds(seconds),
        "x": "" if ratio is None else f"{ratio:.3f}",
        "TFLOP/s": f"{row.matmul_tflops:.0f}" if row.matmul_tflops else "",
        "GB/s": gigabytes(row.bytes_per_s),
        "cycles": f"{row.cycles:,.0f}" if row.cycles else "",
        "GHz": f"{row.sm_clock_hz / 1e9:.2f}" if row.sm_clock_hz else "",
        "regs": str(row.registers or ""),
        "L2 %": "" if row.l2_hit_percent is None else f"{row.l2_hit_percent:.1f}",
        "n": str(row.n or ""),
    }
