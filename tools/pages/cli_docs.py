"""Write docs/cli.md, the help of every command, from the commands themselves.

python tools/pages/cli_docs.py docs/cli.md
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

WIDTH = 88  # columns; the page must not depend on a terminal
_HEAD = """\
# Commands

Written by `./check fix` from the commands' own help; change the help, not this page.
"""


def walk(
    command: click.Command, name: str, parent: click.Context | None = None
) -> Iterator[tuple[list[str], click.Context]]:
    """(words of the command line, context) of a command and all below it; hidden ones not."""
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield context.command_path.split(), context
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None and not child.hidden:
                yield from walk(child, child_name, context)


def page(root: click.Command) -> str:
    """The whole page; a home folder in a default is shown as `~`."""
    parts = [_HEAD]
    for words, context in walk(root, "fa-tune"):
        text = context.get_help().replace(str(Path.home()), "~").rstrip()
        lines = "\n".join(line.rstrip() for line in text.splitlines())
        parts.append(f"{'#' * min(len(words) + 1, 4)} {' '.join(words)}\n\n```text\n{lines}\n```\n")
    return "\n".join(parts)


def main() -> None:
    """Write the page to the file named on the command line."""
    from fa_tune.cli import main as fa_tune_main

    Path(sys.argv[1]).write_text(page(fa_tune_main), encoding="utf-8")


if __name__ == "__main__":
    main()
