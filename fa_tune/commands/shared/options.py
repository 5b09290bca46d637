"""How commands declare options; `option_groups` has those that several share.

A value comes from the option, else from the variable named in its help, else the default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from fa_tune.commands.shared import parameters
from fa_tune.commands.shared.parameters import STDOUT, NamedPath, WholeNumber, whole_numbers
from fa_tune.core.inputs import InputSpec
from fa_tune.core.workload import FIELDS, MASKS, USUAL

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
Values = dict[str, Any]  # of a command's options, by their names
MAX_TOKENS = 1 << 20
LENGTH = WholeNumber(1, MAX_TOKENS)
COUNT = WholeNumber(1, 65535)  # of heads, or of batch elements
D_HEAD = WholeNumber(1, 1024)
D_HEADS = whole_numbers(1, 1024, "64,128")
INPUTS = (
    "Names: trained (heads that differ like those of trained models), normal (random numbers), "
    "peaked:SIGMA (scores with that standard deviation in nats; 6 if omitted), sink (key 0 "
    "is 12 nats above the others), falling:NATS (each block of keys is so far above the next; 12 "
    "if omitted), far_keys (each query has one key, anywhere, 20 nats above the others), low_rank "
    "(scores of rank 8), temperatures (every head and query has its own), or file:PATH "
    "(q, k and v of a safetensors file, each [batch, seq_len, heads, d_head])."
)
_FLAGS = {"causal": ("--full", "--causal"), "bottom_right": ("--top-left", "--bottom-right")}


def option(*names: str, **settings: Any) -> Decorator[Any]:
    """A click option whose default and variable appear in its help."""
    settings.setdefault("show_default", True)
    return click.option(*names, show_envvar=True, **settings)


def flag(*names: str, **settings: Any) -> Decorator[Any]:
    """An option without a value, off unless it is given."""
    return option(*names, is_flag=True, show_default=False, **settings)


def folder(*names: str, **settings: Any) -> Decorator[Any]:
    """An option that takes a folder, which may not exist yet."""
    return option(*names, type=NamedPath(file_okay=False), metavar="DIR", **settings)


recordings_option = functools.partial(folder, "--recordings", envvar="FA_TUNE_RECORDINGS")


def field_option(name: str, **settings: Any) -> Decorator[Any]:
    """The option of a workload's field that has a usual value, as `core.workload` declares it;
    `settings` replace what it would have."""
    spec, usual = FIELDS[name], USUAL[name]
    words = "--" + name.replace("_", "-")
    given: Values = {"default": usual, "help": spec.help}
    if spec.type is bool:
        words += f"/--{spec.off or 'no-' + name.replace('_', '-')}"
    else:
        given["type"] = parameters.of_field(name, spec)
    if spec.usual_text:
        given["show_default"] = spec.usual_text
    return option(words, name, **{**given, **settings})


def several(decorators: Iterable[Decorator[Any]]) -> Decorator[Any]:
    """Decorators as one, the first of them on top."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        return functools.reduce(lambda made, one: one(made), reversed([*decorators]), command)

    return decorate


def receiving(change: Callable[[Values], Values]) -> Decorator[Any]:
    """What calls the command with what `change` makes of the values of its options."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def called(*args: Any, **values: Any) -> Any:
            return command(*args, **change(values))

        return called

    return decorate


def gathered(keyword: str, kind: Callable[..., Any], names: Iterable[str]) -> Decorator[Any]:
    """Values that have one of these names, as one argument of the command."""

    def gather(values: Values) -> Values:
        own = {name: values.pop(name) for name in names if name in values}
        return {keyword: kind(**own), **values}

    return receiving(gather)


def mask_options(what: str, **settings: Any) -> Decorator[Any]:
    """`--causal/--full`, with these settings, and `--mask`, which says the same and where the mask
    is aligned: `causal` and `bottom_right`.  `what` they are, for their help.  Stands above what
    declares `--bottom-right`."""
    named = option(
        "--mask",
        type=click.Choice(MASKS),
        metavar="NAME",
        help=f"{what}, as `search` names it: full, causal (aligned top-left), causal_br "
        "(bottom-right).",
    )
    either = option("--causal/--full", "causal", help=f"{what}.", **settings)
    return several((either, named, receiving(_with_mask)))


def _with_mask(values: Values) -> Values:
    """Values in which a named mask is told by its parts; raises UsageError where another option
    says otherwise."""
    mask = values.pop("mask")
    if mask is None:
        return values
    parts = {"causal": mask != "full", "bottom_right": mask == "causal_br"}
    source = click.get_current_context().get_parameter_source
    for name, value in parts.items():
        if source(name) is not ParameterSource.DEFAULT and values[name] != value:
            raise click.UsageError(f"--mask {mask} and {_FLAGS[name][values[name]]}: name one mask")
    return {**values, **(parts if parts["causal"] else {"causal": False})}


def inputs_list_option(**settings: Any) -> Decorator[Any]:
    """`--inputs` where several make sense: `inputs`, a tuple."""

    def joined(
        _: click.Context, __: click.Parameter, given: tuple[tuple[InputSpec, ...], ...]
    ) -> tuple[InputSpec, ...]:
        return tuple(dict.fromkeys(spec for some in given for spec in some))

    kind = parameters.INPUTS_LIST
    given = {"type": kind, "multiple": True, "callback": joined, "metavar": "NAME,…"}
    return option("--inputs", **given, **settings)


def refuse_same_file(*named: tuple[str, Path | None]) -> None:
    """Raise UsageError if two of these, each an option's or argument's name and its value, are one
    file: what is written last would be all that is left."""
    names: dict[Path, str] = {}
    for name, path in named:
        if path is None or path == STDOUT:
            continue
        other = names.setdefault(path.resolve(), name)
        if other != name:
            raise click.UsageError(f"{other} and {name} are both {path}; name another file")
