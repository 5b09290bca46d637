"""Write docs/cli.md, the help of every command, from the commands themselves.

python tools/pages/cli_docs.py docs/cli.md
"""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from fa_tune.commands.shared.grouped_help import HEADINGS, GroupedCommand

WIDTH = 88  # columns; the page must not depend on a terminal
_HEAD = """\
# Commands

Written by `./check fix` from the commands' own help; change the help, not this page.
`--help` of a command has all of its options. A [glossary](usage.md#glossary) explains the words.
"""
_SHARED = """\
## Options of several commands

Where a command says *as above*, it has these.
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


Record = tuple[str, str]  # an option's names, and its help


def page(root: click.Command) -> str:
    """The whole page; a home folder in a default is shown as `~`.  An option that several commands
    have, with the same help, is described once."""
    commands = list(walk(root, "fa-tune"))
    shared = shared_options([context for _, context in commands])
    parts = [_HEAD]
    for words, context in commands:
        heading = "#" * min(len(words) + 1, 4)
        parts.append(f"{heading} {' '.join(words)}\n\n{_fenced(_help(context, shared))}")
        if context.parent is None:
            described = context.make_formatter()
            for title, records in shared.items():
                with described.section(title):
                    described.write_dl(records)
            parts.append(f"{_SHARED}\n{_fenced(described.getvalue())}")
    return "\n".join(parts)


def shared_options(contexts: Sequence[click.Context]) -> dict[str, list[Record]]:
    """The options by heading that more than one command has with the same help."""
    counts = Counter(
        (heading, record)
        for context in contexts
        for heading, records in _sections(context).items()
        for record in records
    )
    found: dict[str, list[Record]] = {heading: [] for heading in HEADINGS}
    for (heading, record), count in counts.items():
        if count > 1:
            found[heading].append(record)
    return {heading: records for heading, records in found.items() if records}


def _sections(context: click.Context) -> dict[str, list[Record]]:
    command = context.command
    return command.sections(context) if isinstance(command, GroupedCommand) else {}


def _help(context: click.Context, shared: Mapping[str, Sequence[Record]]) -> str:
    """A command's help, with options of several commands by name alone."""
    command = context.command
    if not isinstance(command, GroupedCommand):
        return context.get_help()
    formatter = context.make_formatter()
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    for heading, records in command.sections(context).items():
        elsewhere = shared.get(heading, ())
        own = [r for r in records if r not in elsewhere]
        named = [long_name(r) for r in records if r in elsewhere and long_name(r) != "--help"]
        if not own and not named:
            continue
        with formatter.section(heading):
            if own:
                formatter.write_dl(own)
            if named:
                formatter.write(f"{_wrapped(', '.join(named))}\n")
    command.format_epilog(context, formatter)
    return formatter.getvalue()


def _wrapped(names: str) -> str:
    return textwrap.fill(
        f"As above: {names}.",
        WIDTH - 2,
        initial_indent="  ",
        subsequent_indent="    ",
        break_on_hyphens=False,
    )


def long_name(record: Record) -> str:
    """`--kernels` of `-k, --kernels KEY|CONFIG`; `-n` where there is no long one."""
    words = [word.strip(",") for word in record[0].split()]
    return next((word for word in words if word.startswith("--")), words[0])


def _fenced(text: str) -> str:
    lines = (line.rstrip() for line in text.replace(str(Path.home()), "~").rstrip().splitlines())
    return "```text\n{}\n```\n".format("\n".join(lines))


def main() -> None:
    """Write the page to the file named on the command line."""
    from fa_tune.cli import main as fa_tune_main

    Path(sys.argv[1]).write_text(page(fa_tune_main), encoding="utf-8")


if __name__ == "__main__":
    main()
