"""Measurements as `report` and `profile` show them, fitted to a terminal or in full."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from fa_tune.commands.shared.output import one_line, say
from fa_tune.core import units
from fa_tune.core.model import Outcome
from fa_tune.report.fitted import Legend, fitted
from fa_tune.report.formats import write
from fa_tune.report.summary import summarise
from fa_tune.report.tables import within_limit
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
        say(wrapped(str(group), width))
        for line in _table(members, legend, limit or FITTED_LIMIT, width):
            say(line)
        say()
    subjects = list(dict.fromkeys(_subject(row) for row in rows if not row.is_reference))
    texts = []
    for summary in summarise(rows) if summed_up else ():
        own = [_subject(summary.winner)] if summary.winner is not None else []
        texts.append(legend.numbered(" ".join(summary.sentences), own))
    if subjects:
        starred = any(best(members) is not None for members in grouped(rows).values())
        say(wrapped(STARRED_KEY if starred else KEY, width))
        for line in legend.lines(width):
            say(line)
    for i, text in enumerate(texts):
        say(("" if i else "\n") + wrapped(text, width))
    return legend


def _subject(row: Row) -> str:
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
        name = row.kernel if row.is_reference else legend.number(_subject(row))
        mark = FASTEST if row is winner else ""
        ratio = f"{pace[id(row)] / fastest:.3f}" if id(row) in pace and fastest else ""
        cells.append([mark, name, *_figures(row, ratio, repeated=repeated)])
        if row.reason:
            why.setdefault(one_line(row.reason), []).append(name)
    lines = fitted(_HEADINGS, cells, width, left=_LEFT, spare=_SPARE)
    kept = {id(row) for row in shown}
    hidden = [row for row in rows if id(row) not in kept]
    failed = sum(row.outcome is not Outcome.OK for row in hidden)
    if hidden:
        which = f", {failed} of them without a result" if failed else ""
        lines.append(f"  … {len(hidden)} more{which} (--limit, --wide)")
    texts = (f"{', '.join(dict.fromkeys(names))}: {reason}" for reason, names in why.items())
    return [*lines, *(wrapped(text, width) for text in texts)]


def gigabytes(bytes_per_s: float | None) -> str:
    """GB/s of what is read and written where memory may be the limit, else nothing."""
    return f"{bytes_per_s / 1e9:.0f}" if bytes_per_s else ""


def _figures(row: Row, ratio: str, *, repeated: bool) -> list[str]:
    """The cells after the name; what is missing stays empty."""
    return [
        units.aligned_seconds(row.rank_s) if row.rank_s is not None else "",
        ratio,
        f"{row.matmul_tflops:.0f}" if row.matmul_tflops else "",
        gigabytes(row.bytes_per_s),
        f"{row.cycles:,.0f}" if row.cycles else "",
        f"{row.sm_clock_hz / 1e9:.2f}" if row.sm_clock_hz else "",
        str(row.registers or ""),
        f"{row.l2_hit_percent:.1f}" if row.l2_hit_percent is not None else "",
        str(row.n or "") if repeated else "",
        "" if row.outcome is Outcome.OK else row.outcome.replace("_", " "),
    ]
