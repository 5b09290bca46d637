"""`fa-tune completion`."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_FA_TUNE_COMPLETE"  # what click derives from the program's name


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def command(shell: str | None) -> None:
    """Print the completion script of a SHELL (bash, zsh or fish; default: that of $SHELL).

    \b
    Examples:
      echo 'eval "$(fa-tune completion bash)"' >> ~/.bashrc
      echo 'eval "$(fa-tune completion zsh)"' >> ~/.zshrc
      fa-tune completion fish > ~/.config/fish/completions/fa-tune.fish
    """
    context = click.get_current_context()
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise click.UsageError(f"name the shell: {', '.join(SHELLS)}")
    kind = get_completion_class(name)
    assert kind is not None
    root = context.find_root()
    click.echo(kind(root.command, {}, "fa-tune", VARIABLE).source())
