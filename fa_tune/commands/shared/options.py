"""Options that several commands share, each declared once; `option_groups` has those that come
together.

A value comes from the option, else from the variable named in its help, else the default.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from fa_tune import families
from fa_tune.commands.shared import parameters
from fa_tune.commands.shared.parameters import (
    ALL_FAMILIES,
    STDOUT,
    NamedPath,
    WholeNumber,
    output_file,
    whole_numbers,
)
from fa_tune.core.inputs import InputSpec
from fa_tune.core.options import DEFAULT_KERNELS
from fa_tune.core.workload import FIELDS, USUAL, DType

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
MAX_TOKENS = 1 << 20
LENGTH = WholeNumber(1, MAX_TOKENS)
COUNT = WholeNumber(1, 65535)  # of heads, or of batch elements
D_HEAD = WholeNumber(1, 1024)
D_HEADS = whole_numbers(1, 1024, "64,128")


def option(*names: str, **settings: Any) -> Decorator[Any]:
    """A click option whose default and variable appear in its help."""
    settings.setdefault("show_default", True)
    return click.option(*names, show_envvar=True, **settings)


def flag(*names: str, **settings: Any) -> Decorator[Any]:
    """An option without a value, off unless it is given."""
    return option(*names, is_flag=True, show_default=False, **settings)


def folder(name: str, **settings: Any) -> Decorator[Any]:
    """An option that takes a folder, which may not exist yet."""
    return option(name, type=NamedPath(file_okay=False), metavar="DIR", **settings)


def field_option(name: str, **settings: Any) -> Decorator[Any]:
    """The option of a workload's field that has a usual value, as `core.workload` declares it;
    `settings` replace what it would have."""
    spec, usual = FIELDS[name], USUAL[name]
    words = "--" + name.replace("_", "-")
    given: dict[str, Any] = {"default": usual, "help": spec.help}
    if spec.type is bool:
        words += f"/--{spec.off or 'no-' + name.replace('_', '-')}"
    else:
        given["type"] = parameters.of_field(name, spec)
    if spec.usual_text:
        given["show_default"] = spec.usual_text
    return option(words, name, **{**given, **settings})


def field_options(*names: str, **settings: Any) -> Decorator[Any]:
    """The options of several such fields."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name in reversed(names):
            command = field_option(name, **settings)(command)
        return command

    return decorate


d_head_option = option(
    "--d-head", "d_heads", type=D_HEADS, default="128", metavar="N,N,…", help="Head dimensions."
)
dtype_option = option(
    "--dtype",
    "dtypes",
    type=parameters.DTYPES,
    default="fp16,bf16",
    metavar="NAME,…",
    help="Element types: fp16, bf16 or both.",
)

INPUTS = (
    "Names: trained (heads that differ like those of trained models), normal (random numbers), "
    "peaked:SIGMA (scores with that standard deviation in nats; 6 if omitted), sink (key 0 "
    "is 12 nats above the others), falling (each block of keys is 12 nats above the next), or "
    "file:PATH (q, k and v of a safetensors file, each [batch, seq_len, heads, d_head])."
)


def inputs_list_option(**settings: Any) -> Decorator[Any]:
    """`--inputs` where several make sense: `inputs`, a tuple."""

    def joined(
        _: click.Context, __: click.Parameter, given: tuple[tuple[InputSpec, ...], ...]
    ) -> tuple[InputSpec, ...]:
        return tuple(dict.fromkeys(spec for some in given for spec in some))

    kind = parameters.INPUTS_LIST
    given = {"type": kind, "multiple": True, "callback": joined, "metavar": "NAME,…"}
    return option("--inputs", **given, **settings)


_kernels = option(
    "--kernels",
    "-k",
    type=parameters.KERNELS,
    default=DEFAULT_KERNELS,
    envvar=["FA_TUNE_KERNELS", "KERNELS"],  # the second as the collection of scripts before it
    metavar="KEY|CONFIG",
    help="Which configs: fast (likely winners), wide (all knobs, thousands), tune (the classic "
    "40 per dtype), prog (the optimisation steps), prog-all (these steps at every block "
    "size), all (tune and prog), a block size of tune like 64,32, or one config like "
    '"(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles". A set includes the configs of every '
    "family that has a set of that name.",
)


def kernels_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--kernels`: which configs; one config is refused beside options that name other kinds."""

    @functools.wraps(command)
    def checked(*args: Any, kernels: str, **values: Any) -> Any:
        _refuse_another_kind(kernels, click.get_current_context())
        return command(*args, kernels=kernels, **values)

    decorated: Callable[..., Any] = _kernels(checked)
    return decorated


def _refuse_another_kind(kernels: str, context: click.Context) -> None:
    if not families.is_config(kernels):
        return
    dtype, d_head, _ = families.kind_of(families.parse(kernels, d_head=families.NOT_STATED))
    for words, name, own in (("--dtype", "dtypes", dtype), ("--d-head", "d_heads", d_head)):
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if own and typed and set(context.params[name]) != {own}:
            said = own.name.lower() if isinstance(own, DType) else own
            raise click.UsageError(
                f"the config of --kernels is for {words} {said}; leave {words} out"
            )


family_option = option(
    "--family",
    "families",
    type=parameters.FAMILIES,
    default=ALL_FAMILIES,
    metavar="NAME,…|all",
    help="Families to take --kernels from; all: those that run on the device. A config's short "
    "form already names its family.",
)
axis_option = option(
    "--axis",
    "axes",
    multiple=True,
    metavar="FIELD=V,V,…",
    help="Vary one field of the config over these values; repeat it for more fields. The "
    "other fields come from --kernels if it names one config, else from the default "
    "config.",
)
registry_option = option(
    "--registry",
    type=NamedPath(dir_okay=False, readable=False),
    metavar="FILE",
    envvar="FA_TUNE_REGISTRY",
    show_default="the user's own",
    help="The registry that keeps the chosen configs.",
)
recordings_option = functools.partial(folder, "--recordings", envvar="FA_TUNE_RECORDINGS")
csv_option = option(
    "--csv",
    type=output_file(),
    metavar="FILE",
    help="Also write the whole table as CSV; with - write only that, to standard output.",
)
json_option = flag("--json", "as_json", help="Write the result as JSON only.")
wide_option = flag(
    "--wide", help="Every config and column, with configs in full, however wide the lines become."
)
quiet_option = flag(
    "--quiet", "-q", help="No progress; notes and warnings still appear on standard error."
)
resume_option = option(
    "--resume/--fresh",
    default=True,
    help="Take finished measurements from the journal, or measure everything again.",
)


def limit_option(default: str = "20") -> Decorator[Any]:
    """`--limit`: rows for people."""
    return option(
        "--limit",
        type=WholeNumber(1, 1_000_000),
        show_default=default,
        help="Rows to show per table; CSV and JSON always hold all.",
    )


html_option = option(
    "--html",
    type=output_file(stdout=False),
    metavar="FILE",
    help="Also write a page of figures and tables: one file that needs no network.",
)


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


def refuse_both(csv: Path | None, as_json: bool) -> None:
    """Standard output can hold one document."""
    if as_json and csv == STDOUT:
        raise click.UsageError("--json and --csv - both want standard output; choose one")
