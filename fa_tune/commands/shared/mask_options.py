"""The mask of one workload, by either of its two ways to be named."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from fa_tune.commands.shared.options import Decorator, option
from fa_tune.core.workload import MASKS

_FLAGS = {"causal": ("--full", "--causal"), "bottom_right": ("--top-left", "--bottom-right")}


def mask_options(what: str, **settings: Any) -> Decorator[Any]:
    """`--causal/--full`, with these settings, and `--mask`, which says the same and where the mask
    is aligned: `causal` and `bottom_right`.  `what` they are, for their help.  Stands above what
    declares `--bottom-right`."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_mask(*args: Any, mask: str | None, **values: Any) -> Any:
            return command(*args, **{**values, **_parts(mask, values)})

        decorated: Callable[..., Any] = with_mask
        decorated = option(
            "--mask",
            "mask",
            type=click.Choice(MASKS),
            metavar="NAME",
            help=f"{what}, as `search` names it: full, causal (aligned top-left), causal_br "
            "(bottom-right).",
        )(decorated)
        both: Callable[..., Any] = option("--causal/--full", "causal", help=f"{what}.", **settings)(
            decorated
        )
        return both

    return decorate


def _parts(mask: str | None, values: dict[str, Any]) -> dict[str, bool]:
    """What a named mask is; raises UsageError where another option says otherwise."""
    if mask is None:
        return {}
    found = {"causal": mask != "full", "bottom_right": mask == "causal_br"}
    context = click.get_current_context()
    for name, value in found.items():
        is_default = context.get_parameter_source(name) is ParameterSource.DEFAULT
        if not is_default and values[name] != value:
            raise click.UsageError(f"--mask {mask} and {_FLAGS[name][values[name]]}: name one mask")
    return found if found["causal"] else {"causal": False}
