"""Groups of options that several commands share.

A decorator adds options to a command and hands their values on as one frozen object:

    @workload_options()                    -> workloads: WorkloadOptions
    @measure_options("runs", "seed")       -> measure: MeasureOptions
    @machine_options("arch", "jobs")       -> machine: MachineOptions
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click
from click.core import ParameterSource

from fa_tune.commands.shared.options import (
    COUNT,
    INPUTS,
    MAX_TOKENS,
    Decorator,
    d_head_option,
    dtype_option,
    field_option,
    folder,
    option,
)
from fa_tune.commands.shared.parameters import (
    Architecture,
    GpuNumbers,
    Inputs,
    NamedPath,
    Names,
    Number,
    WholeNumber,
    WholeNumbers,
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
    WorkloadOptions,
)
from fa_tune.core.workload import BENCHMARK_HEADS, MASKS, USUAL
from fa_tune.libraries import LABELS, user

SEQ_LENS = WholeNumbers(1, MAX_TOKENS, "1024,4096")


def users_option() -> Decorator[Any]:
    """`--with`, once or more: places of users' kernels."""
    return option(
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


_WORKLOAD: Mapping[str, Decorator[Any]] = {
    "seq_lens": option(
        "--seq-lens",
        "seq_lens",
        type=SEQ_LENS,
        default="4096",
        metavar="N,N,…",
        help="Sequence lengths of queries, and of keys unless --seq-lens-kv is given.",
    ),
    "seq_lens_kv": option(
        "--seq-lens-kv",
        "seq_lens_kv",
        type=SEQ_LENS,
        default=(),
        show_default="as --seq-lens",
        metavar="N,N,…",
        help="Sequence lengths of keys and values; each is combined with every one of --seq-lens.",
    ),
    "d_heads": d_head_option(),
    "dtypes": dtype_option(),
    "batches": option(
        "--batch",
        "batches",
        type=WholeNumbers(1, 65535, "1,16"),
        default=(),
        show_default="16 up to 4096, then 65536 / seq_len",
        metavar="N,N,…",
        help="Batch sizes; the default depends on the longer sequence length.",
    ),
    "heads": option(
        "--heads", "heads", type=COUNT, default=BENCHMARK_HEADS, help="Heads of the queries."
    ),
    "kv_heads": option(
        "--kv-heads",
        "kv_heads",
        type=COUNT,
        show_default="as many as heads",
        help="Heads of keys and values; fewer than --heads for grouped queries, 1 for multi-query.",
    ),
    "masks": option(
        "--mask",
        "masks",
        type=Names(MASKS),
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
        "profiler",
        type=click.Choice(PROFILERS),
        default="auto",
        help="How to measure: ncu (Nsight Compute), events (CUDA events), replay (recorded "
        "measurements, no GPU needed), or auto: the first of these that works here.",
    ),
    "runs": option(
        "--runs",
        "runs",
        type=WholeNumber(1, 10_000),
        show_default="chosen by the profiler",
        help="Samples of each kernel; the median is used.",
    ),
    "references": option(
        "--ref",
        "references",
        type=Names(tuple(LABELS), none=True),
        default=",".join(REFERENCES),
        metavar="NAME,…",
        help="Reference kernels to measure beside ours: fa2, cudnn, flex (torch's FlexAttention), "
        "fa3 and fa4 if their packages are installed, read (a kernel that only reads K and V, the "
        "limit that memory sets), or none.",
    ),
    "users": users_option(),
    "metrics": option(
        "--metrics",
        "metrics",
        type=click.Choice(METRIC_LISTS),
        default="rank",
        help="Counters to collect: rank (time and clocks), explain (what the time is spent "
        "on), full (everything ncu has; slow).",
    ),
    "clock_control": option(
        "--clock-control",
        "clock_control",
        type=click.Choice(("none", "base")),
        default="none",
        help="Under ncu: leave the GPU's clocks alone, or lock them to the base clock.",
    ),
    "inputs": option(
        "--inputs",
        "inputs",
        type=Inputs(),
        default=str(DEFAULT),
        metavar="NAME",
        help=f"What Q, K and V hold. {INPUTS}",
    ),
    "regime": option(
        "--regime",
        "regime",
        type=click.Choice(REGIMES),
        default=REGIMES[0],
        help="isolated: launches with a cold L2, pauses between samples. sustained: each kernel "
        "back to back for a second in every round, as under load, at the power limit. Times of "
        "the two are not comparable.",
    ),
    "seed": option(
        "--seed",
        "seed",
        type=WholeNumber(0, 2**31 - 1),
        default=0,
        help="Seed of the random inputs and of the measuring order.",
    ),
}

_MACHINE: Mapping[str, Decorator[Any]] = {
    "arch": option(
        "--arch",
        "arch",
        type=Architecture(),
        metavar="ARCH",
        show_default="this GPU's",
        help="Architecture to compile for, like sm_90; needs no GPU.",
    ),
    "jobs": option(
        "--jobs",
        "-j",
        "jobs",
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
    "device": option(
        "--device", "device", type=WholeNumber(0, 1023), default=0, help="Number of the GPU."
    ),
    "devices": option(
        "--devices",
        "devices",
        type=GpuNumbers(),
        default=(),
        metavar="N,N,…|all",
        show_default="--device alone",
        help="Several GPUs of one model, or all visible ones: kernels are verified and workloads "
        "measured on them in parallel, and the GPUs compared.",
    ),
    "ray": option(
        "--ray",
        "ray",
        metavar="ADDRESS|auto",
        show_default="this machine's GPUs",
        help="Use every GPU of the Ray cluster at ADDRESS; auto uses the one running here, or "
        "starts one on this machine. All nodes need the same fa-tune.",
    ),
    "ncu": option(
        "--ncu",
        "ncu",
        type=NamedPath(),
        metavar="FILE",
        envvar="FA_TUNE_NCU",
        show_default="searched on PATH and in CUDA's folders",
        help="The ncu program of Nsight Compute.",
    ),
    "recordings": folder(
        "--recordings",
        "recordings",
        envvar="FA_TUNE_RECORDINGS",
        show_default="those that come with fa-tune",
        help="Recordings to replay: a folder with one folder per GPU, or one of those.",
    ),
    "cache_dir": folder(
        "--cache-dir",
        "cache_dir",
        envvar="FA_TUNE_CACHE_DIR",
        show_default="the user's cache folder",
        help="Where compiled kernels and finished measurements are kept.",
    ),
}


def unusual_options(*names: str, **settings: Any) -> Decorator[Any]:
    """The options of fields of a workload that have a usual value, as `unusual`: a dict."""
    known = {name: field_option(name, **settings) for name in names}
    return _gathered(dict, "unusual", known, names)


def workload_options(*fields: str) -> Decorator[Any]:
    """Options of the problem (no names: all); `common`: COMMON_FIELDS, d_head_v with d_heads."""
    common = [n for n in COMMON_FIELDS if n != "d_head_v" or "d_heads" in fields]
    names = [n for name in fields for n in (common if name == "common" else (name,))]
    return _gathered(_workloads, "workloads", _WORKLOAD, tuple(names))


def _workloads(**values: Any) -> WorkloadOptions:
    common = {name: values.pop(name) for name in COMMON_FIELDS if name in values}
    unusual = {name: value for name, value in common.items() if value != USUAL[name]}
    return WorkloadOptions(**values, common=unusual)


def measure_options(*fields: str) -> Decorator[Any]:
    """Some of the options that say how to measure."""
    return _gathered(_measure, "measure", _MEASURE, fields)


def _measure(users: Sequence[str] = (), **values: Any) -> MeasureOptions:
    found = MeasureOptions(**values, typed=_typed(values))
    return replace(found, references=(*found.references, *map(user_subject, users)))


def machine_options(*fields: str) -> Decorator[Any]:
    """Some of the options that say where things are and for which device."""
    return _gathered(_machine, "machine", _MACHINE, fields)


def _machine(**values: Any) -> MachineOptions:
    return MachineOptions(**values, typed=_typed(values))


def _typed(names: Iterable[str]) -> frozenset[str]:
    """Those of the running command's options that the user gave on the command line."""
    source = click.get_current_context().get_parameter_source
    return frozenset(name for name in names if source(name) is ParameterSource.COMMANDLINE)


def _gathered(
    kind: Callable[..., Any],
    keyword: str,
    known: Mapping[str, Decorator[Any]],
    fields: tuple[str, ...],
) -> Decorator[Any]:
    chosen = fields or tuple(known)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def gather(*args: Any, **values: Any) -> Any:
            own = {name: values.pop(name) for name in chosen}
            return command(*args, **{keyword: kind(**own)}, **values)

        decorated: Callable[..., Any] = gather
        for name in reversed(chosen):
            decorated = known[name](decorated)
        return decorated

    return decorate
