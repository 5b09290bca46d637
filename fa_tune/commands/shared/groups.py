"""Groups of commands that help with a mistyped name."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from functools import partial

import click

# Words that one command takes for what another one calls otherwise.
_ALSO = {
    "seq-len": "seq-lens",
    "seq-len-kv": "seq-lens-kv",
    "d-head": "d-heads",
    "dtype": "dtypes",
    "batch": "batches",
    "mask": "masks",
}
_ALSO |= {theirs: ours for ours, theirs in _ALSO.items()}


class HelpfulGroup(click.Group):
    """A group that shows its help when no command is named and suggests the nearest name.

    Commands are listed in the order they were added, the usual one first.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Arguments as click reads them; without any, the help is shown."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of definition."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> object:
        """Result of the command; an unknown option is answered by what is meant."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            near = _suggested(error)
            raise click.NoSuchOption(
                error.option_name, None if near else _elsewhere(error), near, error.ctx
            ) from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Command by its name, with a suggestion for an unknown one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            ctx.fail(f"no command {name[:40]!r}; {hint}")
        found, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            names = {name.lstrip("-") for p in command.params for name in p.opts}
            settings = command.context_settings
            settings.setdefault("token_normalize_func", partial(_meant, names))
            with click.Context(command, ctx, found, resilient_parsing=True, **settings) as inner:
                _refuse_repeated(command, inner, rest)
        return found, command, rest


def _suggested(error: click.NoSuchOption) -> list[str]:
    """What is nearly that option, or says the same."""
    known = [name for p in error.ctx.command.params for name in p.opts] if error.ctx else []
    if error.option_name in ("--causal", "--full") and "--mask" in known:
        return [f"--mask {error.option_name[2:]}"]
    return difflib.get_close_matches(error.option_name, known, n=2, cutoff=0.75)


def _elsewhere(error: click.NoSuchOption) -> str | None:
    """A message with the commands that have the option; None where none has."""
    if error.ctx is None or not isinstance(root := error.ctx.find_root().command, click.Group):
        return None
    known = {name: root.get_command(error.ctx, name) for name in root.list_commands(error.ctx)}
    having = [
        name
        for name, command in known.items()
        if command and any(error.option_name in p.opts for p in command.params)
    ]
    found = f"; commands with it: {', '.join(having)}" if having else "."
    return f"No such option {error.option_name!r}{found}"


def _meant(names: Collection[str], word: str) -> str:
    """An option of these names by the word for it."""
    return _ALSO[word] if word not in names and _ALSO.get(word) in names else word


def _refuse_repeated(command: click.Command, ctx: click.Context, args: list[str]) -> None:
    """An option that takes one value is given once: the first would be lost without a word."""
    try:
        _, _, order = command.make_parser(ctx).parse_args(args=list(args))
    except click.UsageError:
        return  # told where the command is parsed
    given = [p for p in order if isinstance(p, click.Option) and not (p.multiple or p.count)]
    for one in given:
        if not one.is_flag and given.count(one) > 1:
            raise click.UsageError(f"{one.opts[0]} is given twice", ctx)
