"""`fa-tune schema`."""

from __future__ import annotations

import click

from fa_tune.commands.shared.output import write_json
from fa_tune.core import codec


@click.command("schema")
@click.argument("name", metavar="NAME")
def command(name: str) -> None:
    """Print the JSON Schema of a document: of what `--json` writes, by the name that it has in
    its field `schema`, or of a file: `registry`, `capture`, or `model` of profiles/models.

    \b
    Examples:
      fa-tune schema fa-tune-search-1
      fa-tune schema registry
    """
    from fa_tune.commands.documents import DOCUMENTS  # late: they are of all commands

    known = {name: kind for full, kind in DOCUMENTS.items() for name in (full, _short(full))}
    if name not in known:
        raise click.UsageError(f"no schema {name!r}: there are {', '.join(sorted(DOCUMENTS))}")
    write_json(codec.schema(known[name]))


def _short(name: str) -> str:
    """`search` of `fa-tune-search-1`."""
    return name.removeprefix("fa-tune-").rpartition("-")[0] or name
