"""What a table for people shows: one per group, its columns, its marked and hidden rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fa_tune.core.errors import one_line
from fa_tune.core.model import Outcome
from fa_tune.store.table.columns import BY_FIELD, CLASSIC_COLUMNS, Column
from fa_tune.store.table.rows import Row, best, grouped

BEST_MARK = "*"

# The workload is in the title; the rest is shown where it says something.
_ALWAYS = tuple(c for c in CLASSIC_COLUMNS if c.field not in ("d_head", "seq_len"))
_IF_REPEATED = tuple(BY_FIELD[name] for name in ("n", "median_s"))
_IF_ANY = tuple(BY_FIELD[name] for name in ("matmul_tflops", "bytes_per_s", "sm_clock_hz"))
_IF_FAILED = (BY_FIELD["outcome"],)
_IF_SEVERAL = (BY_FIELD["family"],)


@dataclass(frozen=True)
class Table:
    """One group as text: `cells` is row by row, parallel to `columns`; `best` is the index of
    the row to mark, or None; `rest` says what was left out, or is empty."""

    title: str
    columns: tuple[Column, ...]
    cells: tuple[tuple[str, ...], ...]
    best: int | None
    rest: str


def tables_of(
    rows: Iterable[Row], limit: int | None = None, *, chosen: str | None = None
) -> list[Table]:
    """One table per workload, method and recording, at most `limit` rows in each beside the
    references.  `chosen` is the key of the variant to mark; None: the fastest."""
    groups = grouped(rows).items()
    return [_table(str(group), members, limit, chosen) for group, members in groups]


def _table(title: str, rows: Sequence[Row], limit: int | None, chosen: str | None) -> Table:
    marked = (row for row in rows if f"{row.family}:{row.kernel}" == chosen)
    winner = best(rows) if chosen is None else next(marked, None)
    shown = within_limit(rows, limit, winner)
    columns = _columns(shown)
    return Table(
        title,
        columns,
        tuple(tuple(one_line(column.shown(row)) for column in columns) for row in shown),
        next((i for i, row in enumerate(shown) if row is winner), None),
        rest_of(rows, shown),
    )


def within_limit(rows: Sequence[Row], limit: int | None, winner: Row | None) -> list[Row]:
    """The references and the first `limit` of the others, in the order given; the winner in the
    place of the last of these if it is not among them."""
    others = [row for row in rows if not row.is_reference]
    few = others if limit is None else others[: max(limit, 0)]
    if winner is not None and few and not any(row is winner for row in few):
        few = [*few[:-1], winner]
    kept = {id(row) for row in few}
    return [row for row in rows if row.is_reference or id(row) in kept]


def _columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    columns = list(_ALWAYS)
    if len({row.family for row in rows if row.is_variant}) > 1:
        columns[1:1] = _IF_SEVERAL
    if any((row.n or 0) > 1 for row in rows):
        columns += _IF_REPEATED
    columns += [c for c in _IF_ANY if any(c.cell(row) for row in rows)]
    if any(row.outcome is not Outcome.OK for row in rows):
        columns += _IF_FAILED
    if any(row.reason for row in rows):
        columns.append(BY_FIELD["reason"])
    return tuple(columns)


def rest_of(rows: Sequence[Row], shown: Sequence[Row]) -> str:
    """`… 20 more, 3 of them without a result`: the rows that are not shown; empty if all are."""
    kept = {id(row) for row in shown}
    hidden = [row for row in rows if id(row) not in kept]
    if not hidden:
        return ""
    failed = sum(row.outcome is not Outcome.OK for row in hidden)
    return f"… {len(hidden)} more" + (f", {failed} of them without a result" if failed else "")
