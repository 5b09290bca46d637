"""What stands beside the result, on stderr: notes, warnings, errors."""

from __future__ import annotations

import sys

import click

from fa_tune.report.wrap import terminal_width, wrapped


def aside(line: str) -> None:
    """Put a sentence on stderr: one line, so that programs find it whole, or on a terminal lines
    that fit."""
    click.echo(fitting(line), err=True)


def fitting(line: str) -> str:
    """The sentence as stderr shows it."""
    return wrapped(line, terminal_width()) if sys.stderr.isatty() else line
