"""Options that several commands share, each declared once; a command names those that it has:

@shared_options("workloads", "runs", "arch", "csv", "quiet")
def command(options: SearchOptions, output: Output, quiet: bool)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from fa_tune import families
from fa_tune.commands.shared import parameters
from fa_tune.commands.shared.options import (
    COUNT,
    D_HEADS,
    INPUTS,
    MAX_TOKENS,
    Decorator,
    Values,
    field_option,
    flag,
    folder,
    option,
    receiving,
    recordings_option,
    several,
)
from fa_tune.commands.shared.parameters import NamedPath, WholeNumber
from fa_tune.core.inputs import DEFAULT
from fa_tune.core.model import user_subject
from fa_tune.core.options import (
    BOTH,
    COMMON_FIELDS,
    COMPILE_TIMEOUT_S,
    DEFAULT_KERNELS,
    METRIC_LISTS,
    PROFILERS,
    REFERENCES,
    REGIMES,
    MachineOptions,
    MeasureOptions,
    SearchOptions,
    WorkloadOptions,
)
from fa_tune.core.published import USES
from fa_tune.core.workload import BACKWARD, BENCHMARK_HEADS, FIELDS, MASKS, USUAL, DType
from fa_tune.families.selection import stated_config
from fa_tune.libraries import LABELS, is_installed

OF_BACKWARD = ("fa3",)  # references that a backward pass is measured beside where they are there
OPERATIONS = FIELDS["op"].allowed
MODELS = "models"
SEQ_LENS = parameters.whole_numbers(1, MAX_TOKENS, "1024,4096")

_WORKLOAD: Mapping[str, Decorator[Any]] = {
    MODELS: option(
        "--model",
        MODELS,
        type=parameters.MODELS,
        default=(),
        show_default=False,
        metavar="NAME[:USE],…",
        help="The workloads of public models, such as llama-3.1-8b, or of all, for each USE or for "
        f"one: {', '.join(USES)}. An unknown name, such as list, is answered with all names.",
    ),
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
    "d_heads": option(
        "--d-head", "d_heads", type=D_HEADS, default="128", metavar="N,N,…", help="Head dimensions."
    ),
    "dtypes": option(
        "--dtype",
        "dtypes",
        type=parameters.DTYPES,
        default="fp16,bf16",
        metavar="NAME,…",
        help="Element types: fp16, bf16 or both.",
    ),
    "batches": option(
        "--batch",
        "batches",
        type=parameters.whole_numbers(1, 65535, "1,16"),
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
        type=parameters.names(MASKS),
        default="full",
        metavar="NAME,…",
        help="Masks: full (every query sees every key), causal (query i sees keys 0 to i), "
        "causal_br (the last query sees every key, the one before it all but the last, …).",
    ),
    **{name: field_option(name) for name in COMMON_FIELDS},
    "accuracy": field_option("accuracy", envvar="FA_TUNE_ACCURACY"),
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
        type=parameters.names(tuple(LABELS), alone="none"),
        default=",".join(REFERENCES),
        metavar="NAME,…",
        help="Reference kernels to measure beside ours: fa2, cudnn, flex (torch's FlexAttention), "
        "fa3, fa4, cudnn-fe (cuDNN's front end) and flashinfer if their packages are installed, "
        "read (a kernel that only reads K and V, the limit that memory sets), sdpa (the one of "
        "these that torch runs), or none.",
    ),
    "users": option(
        "--with",
        "users",
        multiple=True,
        type=parameters.PLACE,
        metavar="PLACE",
        show_default=False,
        help="A kernel of yours to run beside ours, never chosen: module:function, "
        "file.py:function, file.cu:kernel with launch() in file.py, or a name that a package "
        "offers. Repeat it for more.",
    ),
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
        type=parameters.Number(1.0, 86_400.0),
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


_STEP_OP = field_option(
    "op",
    type=click.Choice((*OPERATIONS, BOTH)),
    help=f"{FIELDS['op'].help} both: forward with the log-sum-exp, as training runs it, then "
    "backward, and the time of both beside the libraries'.",
)

# The other parts of SearchOptions.
_SEARCH: Mapping[str, Decorator[Any]] = {
    "kernels": option(
        "--kernels",
        "-k",
        type=parameters.KERNELS,
        default=DEFAULT_KERNELS,
        envvar=["FA_TUNE_KERNELS", "KERNELS"],  # the second as earlier collections of scripts
        metavar="KEY|CONFIG",
        help="Which configs: fast (likely winners), wide (all knobs, thousands), tune (40 per "
        "dtype, chosen by rules), prog (the optimisation steps), prog-all (these steps at every "
        "block size), all (tune and prog), a block size of tune like 64,32, or one config like "
        '"(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles". A set includes the configs of every '
        "family that has a set of that name.",
    ),
    "families": option(
        "--family",
        "families",
        type=parameters.FAMILIES,
        default=parameters.ALL_FAMILIES,
        metavar="NAME,…|all",
        help="Families to take --kernels from; all: those that run on the device, in a search "
        "without those that another one there outruns. A config's short form already names its "
        "family.",
    ),
    "axes": option(
        "--axis",
        "axes",
        multiple=True,
        metavar="FIELD=V,V,…",
        help="Vary one field of the config over these values; repeat it for more fields. The "
        "other fields come from --kernels if it names one config, else from the default "
        "config.",
    ),
    "registry": option(
        "--registry",
        type=NamedPath(dir_okay=False),
        metavar="FILE",
        envvar="FA_TUNE_REGISTRY",
        show_default="the user's own",
        help="The registry that keeps the chosen configs.",
    ),
    "resume": option(
        "--resume/--fresh",
        default=True,
        help="Take finished measurements from the journal, or measure everything again.",
    ),
}

_OUTPUT: Mapping[str, Decorator[Any]] = {
    "csv": option(
        "--csv",
        type=parameters.output_file(),
        metavar="FILE",
        help="Also write the whole table as CSV; with - write only that, to standard output.",
    ),
    "as_json": flag("--json", "as_json", help="Write the result as JSON only."),
    "wide": flag(
        "--wide",
        help="Every config and column, with configs in full, however wide the lines become.",
    ),
}

_OTHERS: Mapping[str, Decorator[Any]] = {
    "html": option(
        "--html",
        type=parameters.output_file(stdout=False),
        metavar="FILE",
        help="Also write a page of figures and tables: one file that needs no network.",
    ),
    "quiet": flag(
        "--quiet", "-q", help="No progress; notes and warnings still appear on standard error."
    ),
}


def shared_options(*names: str, limit: str = "20", step: bool = False) -> Decorator[Any]:
    """Options by their names in the tables above, `workloads` for all of the problem, and `common`
    for COMMON_FIELDS, with d_head_v beside d_heads.  Their values come as `output`, or as
    `options`, for which others of the command are taken too that are a part of SearchOptions; each
    of the rest by itself.  `limit`: the help's word for the default of --limit.  `step`: --op may
    be both."""
    rows = option(
        "--limit",
        type=WholeNumber(1, 1_000_000),
        show_default=limit,
        help="Rows to show per table; CSV and JSON always hold all.",
    )
    output = {**_OUTPUT, "limit": rows}
    known = {**_WORKLOAD, **_MEASURE, **_MACHINE, **_SEARCH, **output, **_OTHERS}
    if step:
        known["op"] = _STEP_OP
    common = [n for n in COMMON_FIELDS if n != "d_head_v" or "d_heads" in names]
    parts = {"workloads": tuple(_WORKLOAD), "common": common}
    chosen = [n for name in names for n in parts.get(name, (name,))]

    def gather(values: Values) -> Values:
        def taken(known: Mapping[str, Any]) -> Values:
            return {name: values.pop(name) for name in chosen if name in known}

        if own := taken(output):
            values["output"] = Output(**own)
        if not {*chosen} - output.keys() - _OTHERS.keys():
            return values
        if values.get("op") == BOTH:
            values |= {"op": BACKWARD, "step": True}
        made = {
            "workloads": _workloads(**taken(_WORKLOAD)),
            "measure": _measure(**taken(_MEASURE)),
            "machine": _typed(MachineOptions, **taken(_MACHINE)),
        }
        fields = [field.name for field in dataclasses.fields(SearchOptions)]
        made |= {name: values.pop(name) for name in fields if name in values}
        if "kernels" in chosen:
            _refuse_another_kind(made["kernels"])
        found = _of_one_operation(SearchOptions(**made))
        _refuse_no_workload(found)
        return {**values, "options": found}

    return several([*(known[name] for name in chosen), receiving(gather)])


def _of_one_operation(found: SearchOptions) -> SearchOptions:
    """With the operation that the families or the config compute which are named, and with
    FlashAttention 3 where that is installed and what else there is to compare with is known to be
    slower.  Raises UsageError where `--op` says otherwise."""
    computed = {families.get(name).operation for name in found.families}
    if families.is_config(found.kernels):
        parsed = families.parse(found.kernels, d_head=families.NOT_STATED)
        computed = {families.kind_of(parsed)[-1]}
    if len(computed) == 1 and not found.step:
        (op,) = computed
        if is_typed("op") and op != found.workloads.op:
            raise click.UsageError(
                f"--op {found.workloads.op}: what is named computes {op}; leave --op out"
            )
        found = replace(found, workloads=found.workloads.with_op(op))
    measure = found.measure
    if found.workloads.op != BACKWARD or "references" in measure.typed:
        return found
    faster = [name for name in OF_BACKWARD if is_installed(name)]
    return replace(found, measure=replace(measure, references=(*measure.references, *faster)))


def _refuse_no_workload(found: SearchOptions) -> None:
    """Raise UsageError where models have none of the operation, or of the kind of the config."""
    grid = found.workloads
    if grid.listed is None:
        return
    if families.is_config(found.kernels):
        config = stated_config(found.kernels, grid.d_heads)
        grid = grid.with_kind(*families.kind_of(config))
    if not grid.workloads():
        kind = "that the config computes" if grid is not found.workloads else f"of --op {grid.op}"
        raise click.UsageError(f"--model has no workload {kind}; name another model or use")


def _workloads(**values: Any) -> WorkloadOptions:
    """Raises UsageError for an option that says of a model's workloads what they are."""
    if of_models := values.pop(MODELS, ()):
        for name, option in typed_options().items():
            if name in values and name not in ("op", "accuracy"):
                raise click.UsageError(f"--model says the workloads: leave {option} out")
        accuracy = values["accuracy"]
        listed = dict.fromkeys(replace(w, accuracy=accuracy) for found in of_models for w in found)
        return WorkloadOptions.of((*listed,), values["op"])
    common = {name: values.pop(name) for name in COMMON_FIELDS if name in values}
    unusual = {name: value for name, value in common.items() if value != USUAL[name]}
    return WorkloadOptions(**values, common=unusual)


def _measure(users: Sequence[str] = (), **values: Any) -> MeasureOptions:
    found: MeasureOptions = _typed(MeasureOptions, **values)
    return replace(found, references=(*found.references, *map(user_subject, users)))


def _typed(kind: Callable[..., Any], **values: Any) -> Any:
    """The options, with the names of those that the user gave on the command line."""
    return kind(**values, typed=frozenset(filter(is_typed, values)))


def is_typed(name: str) -> bool:
    """Whether the user gave an option of the command on its command line."""
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def typed_options() -> dict[str, str]:
    """The words of all options that the user gave, by their parameters' names."""
    params = click.get_current_context().command.params
    return {str(one.name): one.opts[0] for one in params if is_typed(str(one.name))}


def _refuse_another_kind(kernels: str) -> None:
    """Raise UsageError for one config beside options that name other kinds."""
    if not families.is_config(kernels):
        return
    given = click.get_current_context().params
    dtype, d_head, _, op = families.kind_of(families.parse(kernels, d_head=families.NOT_STATED))
    kinds = ("--dtype", "dtypes", dtype), ("--d-head", "d_heads", d_head), ("--op", "op", op)
    for words, name, own in kinds:
        if own and is_typed(name) and given[name] not in (own, (own,)):
            said = own.name.lower() if isinstance(own, DType) else own
            raise click.UsageError(
                f"the config of --kernels is for {words} {said}; leave {words} out"
            )


@dataclass(frozen=True)
class Output:
    """What standard output and files get: JSON, CSV (None: none; `-` for standard output), or a
    table of so many rows (None: the command's own number), in full if `wide`."""

    as_json: bool = False
    csv: Path | None = None
    limit: int | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        if self.as_json and self.csv == parameters.STDOUT:
            raise click.UsageError("--json and --csv - both want standard output; choose one")

    @property
    def is_table(self) -> bool:
        """Whether standard output is for people."""
        return not self.as_json and self.csv != parameters.STDOUT
