"""What stands beside the result, on stderr: notes, warnings, errors."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click


def aside(line: str) -> None:
    """Put a sentence on stderr: one line, so that programs find it whole, or on a terminal lines
    that fit."""
    click.echo(fitting(line), err=True)


def fitting(line: str) -> str:
    """The sentence as stderr shows it."""
    if not sys.stderr.isatty():
        return line
    width = shutil.get_terminal_size().columns
    return textwrap.fill(
        line, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
