"""What `fa-tune search --why-stale` says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.commands.shared.option_groups import Output
from fa_tune.commands.shared.output import say, write_table_csv
from fa_tune.core.model import Variant
from fa_tune.tune.staleness import Staleness, Standing

ROWS = 20  # shown, unless --limit says otherwise
SHOWN = 24  # characters of a value
HEADINGS = ("workload", "config", "field", "was", "is")


@dataclass(frozen=True, kw_only=True)
class Stale:
    """`fa-tune search --why-stale --json`"""

    schema: Literal["fa-tune-stale-1"]
    standings: tuple[Standing, ...]


def show_staleness(found: Staleness, output: Output) -> None:
    """What a search would measure again, and why, on standard output and in a CSV file."""
    if output.as_json:
        write_document(Stale, standings=found.standings)
        return
    rows = [
        [standing.workload, Variant.from_key(standing.subject).config, d.field, d.was, d.now]
        for standing in found.stale
        for d in standing.differences
    ]
    if output.csv is not None:
        write_table_csv(HEADINGS, rows, output.csv)
    if not output.is_table:
        return
    if rows:
        some = [[*r[:3], *(_short(v) for v in r[3:])] for r in rows[: output.limit or ROWS]]
        say(fitted_table(HEADINGS, some, set(HEADINGS), configs="config"))
        if len(rows) > len(some):
            say(f"{len(rows) - len(some)} more; --csv has all.")
    say(found.sentence)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
