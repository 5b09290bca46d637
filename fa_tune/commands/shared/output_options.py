"""Options that say where results go and what is shown meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fa_tune.commands.shared.options import Decorator, option
from fa_tune.commands.shared.parameters import STDOUT, OutputFile


def csv_option() -> Decorator[Any]:
    """`--csv`: the table as a file for machines."""
    return option(
        "--csv",
        "csv",
        type=OutputFile(),
        metavar="FILE",
        help="Write the whole table as CSV too; - is standard output, and then nothing else "
        "is written there.",
    )


def json_option() -> Decorator[Any]:
    """`--json`: standard output for machines."""
    return option(
        "--json",
        "as_json",
        is_flag=True,
        show_default=False,
        help="Write the result as JSON, and nothing else, to standard output.",
    )


def limit_option() -> Decorator[Any]:
    """`--limit`: rows for people."""
    return option(
        "--limit",
        "limit",
        type=click.IntRange(1, 1_000_000),
        show_default="20",
        help="Rows to show per table; CSV and JSON always hold all.",
    )


def quiet_option() -> Decorator[Any]:
    """`--quiet`: no bar."""
    return option(
        "--quiet",
        "-q",
        "quiet",
        is_flag=True,
        show_default=False,
        help="No progress bar; notes and warnings still appear on standard error.",
    )


def refuse_both(csv: Path | None, as_json: bool) -> None:
    """Standard output can hold one document."""
    if as_json and csv == STDOUT:
        raise click.UsageError("--json and --csv - both want standard output; choose one")
