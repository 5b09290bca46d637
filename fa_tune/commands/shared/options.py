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
from fa_tune.commands.shared.parameters import (
    ALL_FAMILIES,
    STDOUT,
    Families,
    InputsList,
    Kernels,
    NamedPath,
    OutputFile,
    WholeNumber,
    WholeNumbers,
    dtypes,
    of_field,
)
from fa_tune.core.inputs import InputSpec
from fa_tune.core.options import (
    DEFAULT_KERNELS,
)
from fa_tune.core.workload import FIELDS, USUAL, DType

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
MAX_TOKENS = 1 << 20
MAX_HEAD_DIM = 1024
LENGTH = WholeNumber(1, MAX_TOKENS)
COUNT = WholeNumber(1, 65535)  # of heads, or of batch elements
D_HEADS = WholeNumbers(1, MAX_HEAD_DIM, "64,128")


def option(*names: str, **settings: Any) -> Decorator[Any]:
    """A click option whose default and variable appear in its help."""
    settings.setdefault("show_default", True)
    return click.option(*names, show_envvar=True, **settings)


def folder(*names: str, **settings: Any) -> Decorator[Any]:
    """An option that takes a folder, which may not exist yet."""
    kind = NamedPath(file_okay=False)
    return option(*names, type=kind, metavar="DIR", **settings)


def d_head_option(name: str = "d_heads") -> Decorator[Any]:
    """`--d-head`."""
    return option(
        "--d-head", name, type=D_HEADS, default="128", metavar="N,N,…", help="Head dimensions."
    )


def dtype_option() -> Decorator[Any]:
    """`--dtype`."""
    return option(
        "--dtype",
        "dtypes",
        type=dtypes(),
        default="fp16,bf16",
        metavar="NAME,…",
        help="Element types: fp16, bf16 or both.",
    )


def field_option(name: str, **settings: Any) -> Decorator[Any]:
    """The option of a workload's field that has a usual value, as `core.workload` declares it;
    `settings` replace what it would have."""
    spec, usual = FIELDS[name], USUAL[name]
    flag = "--" + name.replace("_", "-")
    given: dict[str, Any] = {"default": usual, "help": spec.help}
    if spec.type is bool:
        flag += f"/--{spec.off or 'no-' + name.replace('_', '-')}"
    else:
        given["type"] = of_field(name, spec)
    if spec.usual_text:
        given["show_default"] = spec.usual_text
    return option(flag, name, **{**given, **settings})


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

    return option(
        "--inputs",
        "inputs",
        type=InputsList(),
        multiple=True,
        callback=joined,
        metavar="NAME,…",
        **settings,
    )


def kernels_option() -> Decorator[Any]:
    """`--kernels`: which configs; one config is refused beside options that name other kinds."""
    add: Decorator[Any] = option(
        "--kernels",
        "-k",
        "kernels",
        type=Kernels(),
        default=DEFAULT_KERNELS,
        envvar="KERNELS",
        metavar="KEY|CONFIG",
        help="Which configs: fast (likely winners), wide (all knobs, thousands), tune (the classic "
        "40 per dtype), prog (the optimisation steps), prog-all (these steps at every block "
        "size), all (tune and prog), a block size of tune like 64,32, or one config like "
        '"(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles". A set includes the configs of every '
        "family that has a set of that name.",
    )

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def checked(*args: Any, kernels: str, **values: Any) -> Any:
            _refuse_another_kind(kernels, click.get_current_context())
            return command(*args, kernels=kernels, **values)

        decorated: Callable[..., Any] = add(checked)
        return decorated

    return decorate


def _refuse_another_kind(kernels: str, context: click.Context) -> None:
    if not families.is_config(kernels):
        return
    dtype, d_head, _ = families.kind_of(families.parse(kernels, d_head=families.NOT_STATED))
    for flag, name, own in (("--dtype", "dtypes", dtype), ("--d-head", "d_heads", d_head)):
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if own and typed and set(context.params[name]) != {own}:
            said = own.name.lower() if isinstance(own, DType) else own
            raise click.UsageError(
                f"the config of --kernels is for {flag} {said}; leave {flag} out"
            )


def family_option(name: str = "names") -> Decorator[Any]:
    """`--family`: whose configs."""
    return option(
        "--family",
        name,
        type=Families(),
        default=ALL_FAMILIES,
        metavar="NAME,…|all",
        help="Families to take --kernels from; all: those that run on the device. A config's short "
        "form already names its family.",
    )


def axis_option() -> Decorator[Any]:
    """`--axis`: the values of one field; `commands.axes` expands them."""
    return option(
        "--axis",
        "axes",
        multiple=True,
        metavar="FIELD=V,V,…",
        help="Vary one field of the config over these values; repeat it for more fields. The "
        "other fields come from --kernels if it names one config, else from the default "
        "config.",
    )


def registry_option() -> Decorator[Any]:
    """`--registry`: the file that keeps the winners."""
    return option(
        "--registry",
        "registry",
        type=NamedPath(dir_okay=False, readable=False),
        metavar="FILE",
        envvar="FA_TUNE_REGISTRY",
        show_default="the user's own",
        help="The registry that keeps the chosen configs.",
    )


def csv_option() -> Decorator[Any]:
    """`--csv`: the table as a file for machines."""
    return option(
        "--csv",
        "csv",
        type=OutputFile(),
        metavar="FILE",
        help="Also write the whole table as CSV; with - write only that, to standard output.",
    )


def json_option() -> Decorator[Any]:
    """`--json`: standard output for machines."""
    return option(
        "--json",
        "as_json",
        is_flag=True,
        show_default=False,
        help="Write the result as JSON only.",
    )


def limit_option(default: str = "20") -> Decorator[Any]:
    """`--limit`: rows for people."""
    return option(
        "--limit",
        "limit",
        type=WholeNumber(1, 1_000_000),
        show_default=default,
        help="Rows to show per table; CSV and JSON always hold all.",
    )


def wide_option() -> Decorator[Any]:
    """`--wide`: tables in full."""
    return option(
        "--wide",
        "wide",
        is_flag=True,
        show_default=False,
        help="Every config and column, with configs in full, however wide the lines become.",
    )


def quiet_option() -> Decorator[Any]:
    """`--quiet`: no bar."""
    return option(
        "--quiet",
        "-q",
        "quiet",
        is_flag=True,
        show_default=False,
        help="No progress bar; notes and warnings still appear on standard error.",
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
