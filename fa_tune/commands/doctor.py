"""`fa-tune doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import click

from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.output import say
from fa_tune.commands.shared.progress import watching
from fa_tune.core.errors import ToolMissing, one_line
from fa_tune.core.options import SearchOptions
from fa_tune.report.wrap import folded, terminal_width
from fa_tune.tune import machine_check
from fa_tune.tune.results import Check

MARKS = {True: "✓", False: "✗", None: "–"}


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """`fa-tune doctor --json`"""

    schema: Literal["fa-tune-doctor-1"]
    ok: bool
    checks: tuple[Check, ...]


@click.command("doctor")
@shared_options("as_json", "device", "ncu", "recordings", "cache_dir", "quiet")
def command(options: SearchOptions, output: Output, quiet: bool) -> None:
    """Check everything the commands need, and say how to fix what is missing.

    ✓ is fine, ✗ needs attention, – does not apply here (a machine without a GPU can still
    replay recordings and compile). Exit status 3 if anything needs attention.

    \b
    Example:
      fa-tune doctor
    """
    with watching(quiet) as progress:
        checks = machine_check.doctor(options.machine, progress)
    bad = [check.name for check in checks if check.ok is False]
    if output.as_json:
        write_document(Doctor, ok=not bad, checks=checks)
    else:
        width = max((len(check.name) for check in checks), default=0)
        for check in checks:
            _say(f"{MARKS[check.ok]} {check.name:{width}}  ", check.detail)
            if check.fix and check.ok is not True:
                _say(f"  {'':{width}}  ", f"fix: {check.fix}")
    if bad:
        raise ToolMissing(f"needs attention: {', '.join(bad)}")


def _say(begin: str, text: str) -> None:
    """A line, folded where the terminal is too narrow, in a config after one of its words."""
    for line in folded(one_line(text), terminal_width() - len(begin), further="").splitlines():
        say(f"{begin}{line}".rstrip())
        begin = " " * len(begin)
