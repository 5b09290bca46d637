"""Groups of commands that help with a mistyped name."""

from __future__ import annotations

import difflib

import click


class HelpfulGroup(click.Group):
    """A group that shows its help when no command is named and suggests the nearest name.

    Commands are listed in the order they were added, the usual one first.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does; without any argument, say what there is."""
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of definition."""
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, with a suggestion for an unknown name."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            known = self.list_commands(ctx)
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            ctx.fail(f"no command {name[:40]!r}; {hint}")
        found, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            with click.Context(command, ctx, found, resilient_parsing=True) as inner:
                _refuse_repeated(command, inner, rest)
        return found, command, rest


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
