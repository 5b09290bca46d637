"""What stands beside the result, on stderr: notes, warnings, errors."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import click

from fa_tune.core.errors import shown
from fa_tune.report.wrap import terminal_width, wrapped


def aside(line: str) -> None:
    """Put a sentence on stderr: one line, so that programs find it whole, or on a terminal lines
    that fit.  Where they do not fit on a disk the work goes on without them."""
    try:
        click.echo(fitting(line), err=True)
    except BrokenPipeError:
        raise
    except OSError:
        abandon(sys.stderr)


def abandon(stream: TextIO) -> None:
    """Let what a stream still holds go nowhere, so that leaving raises no second error."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def fitting(line: str) -> str:
    """The sentence as stderr shows it."""
    line = shown(line)
    return wrapped(line, terminal_width()) if sys.stderr.isatty() else line
