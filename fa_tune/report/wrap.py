"""Sentences in lines that fit the terminal."""

from __future__ import annotations

import re
import shutil
import textwrap

DEFAULT_WIDTH = 80


def terminal_width() -> int:
    """Columns of the terminal, or of one that is not there."""
    return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns


def wrapped(text: str, width: int, *, indent: str = "") -> str:
    """A sentence in lines that fit, the first one after `indent`, the others two further in."""
    return textwrap.fill(
        text,
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def folded(text: str, width: int, *, indent: str = "", further: str = " " * 6) -> str:
    """A line that may hold short forms in lines that fit, cut after spaces and `+`, the first one
    after `indent`, the others `further` in."""
    lines, line = [], indent
    for piece in re.split(r"(?<=[+ ])", text):
        if len(line) + len(piece.rstrip()) > width and line.strip():
            lines.append(line.rstrip())
            line = f"{indent}{further}"
        line += piece
    return "\n".join([*lines, line.rstrip()])
