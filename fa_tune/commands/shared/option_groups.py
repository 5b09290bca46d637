"""Groups of options that several commands share.

A decorator adds options to a command and hands their values on as one frozen object:

    @workload_options()                    -> workloads: WorkloadOptions
    @measure_options("runs", "seed")       -> measure: MeasureOptions
    @machine_options("arch", "jobs")       -> machine: MachineOptions
    @output_options("csv", "limit")        -> output: Output

and `gathered` makes one of values that are there already, as SearchOptions of these.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fa_tune.commands.shared import parameters
from fa_tune.commands.shared.options import (
    COUNT,
    INPUTS,
    MAX_TOKENS,
    Decorator,
    csv_option,
    d_head_option,
    dtype_option,
    field_option,
    folder,
    json_option,
    limit_option,
    option,
    recordings_option,
    refuse_both,
    wide_option,
)
from fa_tune.commands.shared.parameters import (
    STDOUT,
    NamedPath,
    Number,
    WholeNumber,
    names,
    whole_numbers,
)
from fa_tune.core.inputs import DEFAULT
from fa_tune.core.model import user_subject
from fa_tune.core.options import (
    COMMON_FIELDS,
    COMPILE_TIMEOUT_S,
    METRIC_LISTS,
    PROFILERS,
    REFERENCES,
    REGIMES,
    MachineOptions,
    MeasureOptions,
    SearchOptions,
    WorkloadOptions,
)
from fa_tune.core.workload import BENCHMARK_HEADS, MASKS, USUAL
from fa_tune.libraries import LABELS, user

users_option = option(
    "--with",
    "users",
    multiple=True,
    metavar="PLACE",
    show_default=False,
    callback=lambda _context, _parameter, places: [user.locate(p).place for p in places],
    help="A kernel of yours to run beside ours, never chosen: module:function, "
    "file.py:function, file.cu:kernel with launch() in file.py, or a name that a package "
    "offers. Repeat it for more.",
)
SEQ_LENS = whole_numbers(1, MAX_TOKENS, "1024,4096")

_WORKLOAD: Mapping[str, Decorator[Any]] = {
    "seq_lens": option(
        "--seq-lens",
        type=SEQ_LENS,
        default="4096",
        metavar="N,N,…",
        help="Sequence lengths of queries, and of keys unless --seq-lens-kv is given.",
    ),
    "seq_lens_kv": option(
        "--seq-lens-kv",
        type=SEQ_LENS,
        default=(),
        show_default="as --seq-lens",
        metavar="N,N,…",
        help="Sequence lengths of keys and values; each is combined with every one of --seq-lens.",
    ),
    "d_heads": d_head_option,
    "dtypes": dtype_option,
    "batches": option(
        "--batch",
        "batches",
        type=whole_numbers(1, 65535, "1,16"),
        default=(),
        show_default="16 up to 4096, then 65536 / seq_len",
        metavar="N,N,…",
        help="Batch sizes; the default depends on the longer sequence length.",
    ),
    "heads": option("--heads", type=COUNT, default=BENCHMARK_HEADS, help="Heads of the queries."),
    "kv_heads": option(
        "--kv-heads",
        type=COUNT,
        show_default="as many as heads",
        help="Heads of keys and values; fewer than --heads for grouped queries, 1 for multi-query.",
    ),
    "masks": option(
        "--mask",
        "masks",
        type=names(MASKS),
        default="full",
        metavar="NAME,…",
        help="Masks: full (every query sees every key), causal (query i sees keys 0 to i), "
        "causal_br (the last query sees every key, the one before it all but the last, …).",
    ),
    **{name: field_option(name) for name in COMMON_FIELDS},
}

_MEASURE: Mapping[str, Decorator[Any]] = {
    "profiler": option(
        "--profiler",
        type=click.Choice(PROFILERS),
        default="auto",
        help="How to measure: ncu (Nsight Compute), events (CUDA events), replay (recorded "
        "measurements, no GPU needed), or auto: the first of these that works here.",
    ),
    "runs": option(
        "--runs",
        type=WholeNumber(1, 10_000),
        show_default="chosen by the profiler",
        help="Samples of each kernel; the median is used.",
    ),
    "references": option(
        "--ref",
        "references",
        type=names(tuple(LABELS), alone="none"),
        default=",".join(REFERENCES),
        metavar="NAME,…",
        help="Reference kernels to measure beside ours: fa2, cudnn, flex (torch's FlexAttention), "
        "fa3 and fa4 if their packages are installed, read (a kernel that only reads K and V, the "
        "limit that memory sets), or none.",
    ),
    "users": users_option,
    "metrics": option(
        "--metrics",
        type=click.Choice(METRIC_LISTS),
        default="rank",
        help="Counters to collect: rank (time and clocks), explain (what the time is spent "
        "on), full (everything ncu has; slow).",
    ),
    "clock_control": option(
        "--clock-control",
        type=click.Choice(("none", "base")),
        default="none",
        help="Under ncu: leave the GPU's clocks alone, or lock them to the base clock.",
    ),
    "inputs": option(
        "--inputs",
        type=parameters.INPUT,
        default=str(DEFAULT),
        metavar="NAME",
        help=f"What Q, K and V hold. {INPUTS}",
    ),
    "regime": option(
        "--regime",
        type=click.Choice(REGIMES),
        default=REGIMES[0],
        help="isolated: launches with a cold L2, pauses between samples. sustained: each kernel "
        "back to back for a second in every round, as under load, at the power limit. Times of "
        "the two are not comparable.",
    ),
    "seed": option(
        "--seed",
        type=WholeNumber(0, 2**31 - 1),
        default=0,
        help="Seed of the random inputs and of the measuring order.",
    ),
}

_MACHINE: Mapping[str, Decorator[Any]] = {
    "arch": option(
        "--arch",
        type=parameters.ARCHITECTURE,
        metavar="ARCH",
        show_default="this GPU's",
        help="Architecture to compile for, like sm_90; needs no GPU.",
    ),
    "jobs": option(
        "--jobs",
        "-j",
        type=WholeNumber(1, 1024),
        show_default="one per core",
        help="Compiler processes to run in parallel.",
    ),
    "compile_timeout_s": option(
        "--compile-timeout",
        "compile_timeout_s",
        type=Number(1.0, 86_400.0),
        default=COMPILE_TIMEOUT_S,
        metavar="SECONDS",
        help="Time limit for compiling one kernel; a kernel that takes longer is left out.",
    ),
    "device": option("--device", type=WholeNumber(0, 1023), default=0, help="Number of the GPU."),
    "devices": option(
        "--devices",
        type=parameters.GPU_NUMBERS,
        default=(),
        metavar="N,N,…|all",
        show_default="--device alone",
        help="Several GPUs of one model, or all visible ones: kernels are verified and workloads "
        "measured on them in parallel, and the GPUs compared.",
    ),
    "ray": option(
        "--ray",
        metavar="ADDRESS|auto",
        show_default="this machine's GPUs",
        help="Use every GPU of the Ray cluster at ADDRESS; auto uses the one running here, or "
        "starts one on this machine. All nodes need the same fa-tune.",
    ),
    "ncu": option(
        "--ncu",
        type=NamedPath(),
        metavar="FILE",
        envvar="FA_TUNE_NCU",
        show_default="searched on PATH and in CUDA's folders",
        help="The ncu program of Nsight Compute.",
    ),
    "recordings": recordings_option(
        show_default="those that come with fa-tune",
        help="Recordings to replay: a folder with one folder per GPU, or one of those.",
    ),
    "cache_dir": folder(
        "--cache-dir",
        envvar="FA_TUNE_CACHE_DIR",
        show_default="the user's cache folder",
        help="Where compiled kernels and finished measurements are kept.",
    ),
}


def workload_options(*fields: str) -> Decorator[Any]:
    """Options of the problem (no names: all); `common`: COMMON_FIELDS, d_head_v with d_heads."""
    common = [n for n in COMMON_FIELDS if n != "d_head_v" or "d_heads" in fields]
    chosen = [n for name in fields for n in (common if name == "common" else (name,))]
    return _group("workloads", _workloads, _WORKLOAD, chosen)


def _workloads(**values: Any) -> WorkloadOptions:
    common = {name: values.pop(name) for name in COMMON_FIELDS if name in values}
    unusual = {name: value for name, value in common.items() if value != USUAL[name]}
    return WorkloadOptions(**values, common=unusual)


def measure_options(*fields: str) -> Decorator[Any]:
    """Some of the options that say how to measure."""
    return _group("measure", _measure, _MEASURE, fields)


def _measure(users: Sequence[str] = (), **values: Any) -> MeasureOptions:
    found: MeasureOptions = _typed(MeasureOptions, **values)
    return replace(found, references=(*found.references, *map(user_subject, users)))


def machine_options(*fields: str) -> Decorator[Any]:
    """Some of the options that say where things are and for which device."""
    return _group("machine", functools.partial(_typed, MachineOptions), _MACHINE, fields)


def _typed(kind: type, **values: Any) -> Any:
    """The options, with the names of those that the user gave on the command line."""
    source = click.get_current_context().get_parameter_source
    typed = frozenset(name for name in values if source(name) is ParameterSource.COMMANDLINE)
    return kind(**values, typed=typed)


@dataclass(frozen=True)
class Output:
    """What standard output and files get: JSON, CSV (None: none; `-` for standard output), or a
    table of so many rows (None: the command's own number), in full if `wide`."""

    as_json: bool = False
    csv: Path | None = None
    limit: int | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        refuse_both(self.csv, self.as_json)

    @property
    def is_table(self) -> bool:
        """Whether standard output is for people."""
        return not self.as_json and self.csv != STDOUT


def output_options(*fields: str, limit: str = "20") -> Decorator[Any]:
    """`--json` and some of the other options that say what is written; `limit`: the help's word
    for its default."""
    known = {"csv": csv_option, "as_json": json_option, "wide": wide_option}
    known["limit"] = limit_option(limit)
    return _group("output", Output, known, [n for n in known if n in (*fields, "as_json")])


def _group(
    keyword: str,
    kind: Callable[..., Any],
    known: Mapping[str, Decorator[Any]],
    fields: Sequence[str],
) -> Decorator[Any]:
    chosen = tuple(fields or known)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        decorated: Callable[..., Any] = gathered(keyword, kind, chosen)(command)
        for name in reversed(chosen):
            decorated = known[name](decorated)
        return decorated

    return decorate


def gathered(keyword: str, kind: Callable[..., Any], names: Iterable[str]) -> Decorator[Any]:
    """Values that have one of these names, as one argument of the command."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gather(*args: Any, **values: Any) -> Any:
            own = {name: values.pop(name) for name in names if name in values}
            return command(*args, **{keyword: kind(**own)}, **values)

        return gather

    return decorate


# Stands below all options: those that are a part of SearchOptions, as `options`.
search_options = gathered(
    "options", SearchOptions, [field.name for field in dataclasses.fields(SearchOptions)]
)
