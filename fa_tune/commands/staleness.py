"""What `fa-tune search --why-stale` says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fa_tune.commands.shared.output import say, text_table, write_json, write_table_csv
from fa_tune.commands.shared.parameters import STDOUT
from fa_tune.commands.shared.progress import watching
from fa_tune.core.model import Variant
from fa_tune.core.options import SearchOptions
from fa_tune.tune.staleness import why_stale

if TYPE_CHECKING:
    from fa_tune.families.base import Config

SCHEMA = "fa-tune-stale-1"
ROWS = 20  # shown, unless --limit says otherwise
SHOWN = 24  # characters of a value
HEADINGS = ("workload", "config", "field", "was", "is")


def show(
    options: SearchOptions,
    configs: Sequence[Config] | None,
    *,
    as_json: bool,
    csv: Path | None,
    limit: int | None,
    quiet: bool,
) -> None:
    """Say what a search with these options would measure again, and why."""
    with watching(quiet) as progress:
        found = why_stale(options, progress, configs)
    if as_json:
        standings = [dataclasses.asdict(one) for one in found.standings]
        write_json({"schema": SCHEMA, "standings": standings})
        return
    rows = [
        [one.workload, Variant.from_key(one.subject).config, d.field, d.was, d.now]
        for one in found.stale
        for d in one.differences
    ]
    if csv is not None:
        write_table_csv(HEADINGS, rows, csv)
    if csv == STDOUT:
        return
    if rows:
        some = [[*r[:3], *(_short(v) for v in r[3:])] for r in rows[: limit or ROWS]]
        say(text_table(HEADINGS, some, set(HEADINGS)))
        if len(rows) > len(some):
            say(f"{len(rows) - len(some)} more; --csv has all.")
    say(found.sentence)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
