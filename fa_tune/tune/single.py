"""The commands beside the search: profile, bench, run, build, verify."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fa_tune import families
from fa_tune.build import nvrtc
from fa_tune.build.compile import BuildRequest
from fa_tune.core.errors import InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.core.inputs import InputSpec
from fa_tune.core.model import Attempt, Outcome, Resources, is_reference
from fa_tune.core.options import (
    KernelOptions,
    MachineOptions,
    MeasureOptions,
    Progress,
    Silent,
    WorkloadOptions,
)
from fa_tune.core.workload import FAST, FORWARD, MASKS, DType, Workload
from fa_tune.families.base import Config
from fa_tune.families.fields import d_v_of
from fa_tune.families.selection import (
    check_accuracy,
    choose_configs,
    note_of_d_head,
    stated_config,
)
from fa_tune.operations.traits import Traits
from fa_tune.tune.build import build_all, build_request, prepare
from fa_tune.tune.candidates import (
    choose_families,
    prune_configs,
    workloads_for,
    workloads_of_kinds,
)
from fa_tune.tune.measure import measured, request_for
from fa_tune.tune.outputs import Recorder, check_writable
from fa_tune.tune.profilers import choose_profiler, fall_back
from fa_tune.tune.results import BuildReport, ProfileResult, VerifyReport
from fa_tune.tune.session import Machine, ProfilerSelection, Session, open_machine, open_session
from fa_tune.tune.unrecorded import recorded_among, recorded_only
from fa_tune.tune.verify import Interrupted, Verified, verdict_key, verify_all, verify_users

ALL_DTYPES = (DType.BF16, DType.FP16)
WHOLE_BLOCKS = str(Traits())
LENGTHS = (521, 777)  # of queries and keys of examples, beside the window
MOST_WINDOW = 16384


def profile(
    configs: Sequence[str],
    options: KernelOptions,
    progress: Progress,
    *,
    export: Path | None = None,
) -> ProfileResult:
    """Measure the configs (short forms) with `options.measure.metrics`; one table per workload.

    The configs' own dtype and d_head replace those of `options.workloads`.  `export` keeps
    ncu's report.  Raises NoUsableVariant if no config gives a measurement.
    """
    machine = open_machine(options.machine, progress)
    parsed = [stated_config(text, options.workloads.d_heads) for text in configs]
    for config in parsed:
        check_accuracy(config, options.workloads.accuracy)
    for note in filter(None, map(note_of_d_head, configs, parsed)):
        progress.note(note)
    return _measure(parsed, options, machine, progress, export=export)


def bench(
    options: KernelOptions, progress: Progress, inputs: Sequence[InputSpec] = ()
) -> ProfileResult:
    """Time a set or one config with events (cold L2, interleaved rounds), references beside, on
    each of `inputs` (none: those of the options), which make a recording each where the options
    want one."""
    check_writable(options)
    machine = open_machine(options.machine, progress)
    machine.require_device("bench times kernels on one; search and profile replay recordings")
    grid = options.workloads
    configs = _configs(
        *(options.kernels, grid.dtypes, grid.head_dims, options.families, machine),
        accuracy=grid.accuracy,
    )
    timed = dataclasses.replace(
        options, measure=dataclasses.replace(options.measure, profiler="events")
    )
    return _measure(configs, timed, machine, progress, inputs=inputs)


def run(
    config: str, options: KernelOptions, n: int, progress: Progress
) -> tuple[ProfileResult, VerifyReport]:
    """Verify one config, then run it `n` times (events), reference kernels beside it."""
    grid = options.workloads
    open_machine(options.machine, progress).require_device(
        "run times a kernel on one; search and profile replay recordings"
    )
    verified = dataclasses.replace(grid, d_heads=())
    report = verify(config, verified, options.machine, progress)
    timed = dataclasses.replace(
        options,
        kernels=config,
        measure=dataclasses.replace(options.measure, profiler="events", runs=n),
    )
    if report.verdicts and not all(v.correct for v in report.verdicts.values()):
        empty = ProfileResult((), {}, "not timed: the result is wrong", None)
        return empty, report
    return bench(timed, progress), report


def _measure(
    configs: Sequence[Config],
    options: KernelOptions,
    machine: Machine,
    progress: Progress,
    *,
    export: Path | None = None,
    inputs: Sequence[InputSpec] = (),
) -> ProfileResult:
    """Measure configs without deciding and without the journal: what was asked for is run."""
    inputs = inputs or (options.measure.inputs,)
    kept, rejected = prune_configs(configs, machine.limits)
    for variant, reason in rejected:
        progress.warn(f"{variant.config}: {reason.constraint}: {reason.reason}")
    if not kept:
        raise NoUsableVariant(f"no config was measured: {rejected[0][1].reason}")
    wanted = workloads_of_kinds(options, configs)
    selection = choose_profiler(
        options.measure, machine, progress, export=export, wanted=wanted, configs=configs
    )
    _refuse_unrecorded(kept, wanted, selection)
    progress.note(selection.source)
    session = open_session(machine, selection, options.measure, progress, reuse=options.resume)
    try:
        attempts, resources = _attempts(kept, options, session, inputs)
    except ToolMissing as error:
        if options.measure.metrics != "rank" or export is not None:
            raise  # events have no counters and write no report
        session = fall_back(session, error)
        attempts, resources = _attempts(kept, options, session, inputs)
    own = [a for a in attempts if not is_reference(a.subject)]
    if not any(a.outcome is Outcome.OK for a in own):
        why = next((a.reason for a in own if a.reason), "")
        raise NoUsableVariant(f"no config was measured: {why or 'nothing to measure'}")
    found = session.selection
    kept_report = export if found.method == "ncu" and found.capabilities.measures_anew else None
    if options.record is not None:
        for spec in inputs:
            recorder = Recorder(options.record, options, dataclasses.replace(found, inputs=spec))
            taken = [a for a in attempts if a.measurement and a.measurement.inputs == str(spec)]
            recorder.keep(taken, resources)
    return ProfileResult(
        tuple(attempts), resources, found.source, kept_report, found.profiler.warnings
    )


def _refuse_unrecorded(
    configs: Sequence[Config], wanted: Sequence[Workload], selection: ProfilerSelection
) -> None:
    """Raise NoUsableVariant for a replay that holds none of the configs."""
    held = recorded_only(wanted, selection, Silent())
    if recorded_among(configs, held, selection, Silent()):
        return
    dtype, d_head, *_ = families.kind_of(configs[0])
    which = "none of the configs is" if configs[1:] else "the config is not"
    raise NoUsableVariant(
        f"{which} recorded for {held[0].key}; those that are: fa-tune search --wide --dtype "
        f"{dtype.name.lower()} --d-head {d_head}; others need a GPU"
    )


def _attempts(
    configs: Sequence[Config],
    options: KernelOptions,
    session: Session,
    inputs: Sequence[InputSpec],
) -> tuple[list[Attempt], dict[str, Resources]]:
    """Every config and reference on every workload of its dtype and head dimensions, with all of
    the inputs."""
    attempts: list[Attempt] = []
    resources: dict[str, Resources] = {}
    for kind in dict.fromkeys(families.kind_of(c) for c in configs):
        mine = [c for c in configs if families.kind_of(c) == kind]
        grid = options.workloads.with_kind(*kind)
        local = dataclasses.replace(options, workloads=grid, kernels="")
        wanted = recorded_only(workloads_for(local, mine), session.selection, session.progress)
        prepared = prepare(session, wanted, mine)
        on_inputs = []
        for spec in inputs:
            own = session.with_inputs(spec)
            requests = [
                request_for(
                    own,
                    one.workload,
                    one.artifacts,
                    keep=tuple(one.artifacts),
                    adaptive=False,
                    journaled=False,
                )
                for one in prepared
            ]
            on_inputs.append(measured(own, requests))
        for n, one in enumerate(prepared):
            attempts += one.failures
            resources |= {key: a.resources for key, a in one.artifacts.items()}
            for spec, found in zip(inputs, on_inputs, strict=True):
                of_one = found[n]
                attempts += of_one if len(inputs) == 1 else [_named(a, spec) for a in of_one]
    return attempts, resources


def _named(attempt: Attempt, spec: InputSpec) -> Attempt:
    """The attempt; where it failed, with the inputs it failed on."""
    if attempt.outcome is Outcome.OK:
        return attempt
    return dataclasses.replace(attempt, reason=f"{spec} inputs: {attempt.reason}")


def build(
    kernels: str,
    d_heads: Sequence[int],
    machine: MachineOptions,
    progress: Progress,
    *,
    names: Sequence[str] = (),
    d_head_v: int = 0,
) -> BuildReport:
    """Compile a set for workloads of whole blocks; needs no GPU.  `names` of families; none:
    all that run on the architecture.  `d_head_v` 0: as each of `d_heads`."""
    here = open_machine(machine, progress)
    heads = [(d_head, d_head_v) for d_head in d_heads or (128,)]
    configs = _configs(kernels, _dtypes(kernels), heads, names, here)
    kept, rejected = prune_configs(configs, here.limits)
    requests = [build_request(c, WHOLE_BLOCKS, here) for c in kept]
    results = build_all(requests, here, progress)
    return BuildReport(here.arch, nvrtc.version(), tuple(results), rejected)


def verify(
    kernels: str,
    workloads: WorkloadOptions,
    machine: MachineOptions,
    progress: Progress,
    *,
    names: Sequence[str] = (),
    thorough: bool = False,
    inputs: Sequence[InputSpec] = (),
    users: Sequence[str] = (),
) -> VerifyReport:
    """Check a set against the reference on the GPU, whole blocks and ragged lengths alike, for the
    head dimensions, the masks (kernels of both alignments are the same) and the `common` fields of
    `workloads`: kernels are compiled for these, and tried with values of the verification's own and
    with the very ones that are given.
    `names` of families; none: all that run on the device.  `thorough`: on more cases, among them
    131072 keys.  `inputs` are tried beside those that a verification has of its own.  `users` are
    places of users' kernels, which are checked on the same kinds of problems.

    Every verdict is taken anew, and Ctrl-C leaves those that are finished; each variant's key is
    followed by the traits it was built for.
    Raises InvalidConfig for a window that `example` refuses.
    """
    here = open_machine(machine, progress)
    here.require_device("verify runs kernels on one; build compiles them without")
    heads = workloads.head_dims or ((128, workloads.d_head_v),)
    common = workloads.common
    causal = tuple(dict.fromkeys(mask != MASKS[0] for mask in workloads.masks))
    requested = [example(common, *heads[0], causal=c) for c in causal]
    requested = [w for w in requested if is_special(w) or w.op != FORWARD]
    configs = _configs(
        *(kernels, _dtypes(kernels), heads, names, here, requested), accuracy=workloads.accuracy
    )
    kept, rejected = prune_configs(configs, here.limits)
    examples: dict[BuildRequest, Workload] = {}
    for config in kept:
        for c in causal:
            same = {**common, "op": families.of(config).operation}
            workload = example(same, config.d_head, d_v_of(config), config.dtype, causal=c)
            for traits, of_kernel in examples_of(config, workload):
                examples[build_request(config, traits, here)] = of_kernel
    results = build_all(tuple(examples), here, progress)
    failures = [
        Attempt(r.request.variant.key, "", r.outcome, r.reason)
        for r in results
        if r.artifact is None
    ]
    measure = MeasureOptions(profiler="events")
    selection = choose_profiler(measure, here, progress)
    session = open_session(here, selection, measure, progress, reuse=False)
    built = {r.request: r.artifact for r in results if r.artifact is not None}
    also_on = {
        verdict_key(artifact): examples[request]
        for request, artifact in built.items()
        if is_special(examples[request])
    }
    like = [
        example(common, *dims, dtype, causal=c)
        for dtype, dims, c in itertools.product(ALL_DTYPES, heads, causal)
    ]
    found, interrupted = Verified({}, {}), False
    try:
        every = tuple(built.values())
        found = verify_all(session, every, inputs, thorough=thorough, also_on=also_on)
        found = found.joined(verify_users(session, users, like, inputs, thorough=thorough))
    except Interrupted as stopped:
        found, interrupted = found.joined(stopped.found), True
    failures += found.failures.values()
    return VerifyReport(found.verdicts, tuple(failures), rejected, interrupted)


def _dtypes(kernels: str) -> Sequence[DType]:
    """All, but for a set that fixes its own: the ladder is FP16 unless asked otherwise."""
    return () if kernels.startswith("prog") else ALL_DTYPES


def _configs(
    kernels: str,
    dtypes: Sequence[DType],
    heads: Sequence[tuple[int, int]],
    names: Sequence[str],
    machine: Machine,
    requested: Sequence[Workload] = (),
    *,
    accuracy: str = FAST,
) -> list[Config]:
    """What `choose_configs` gives for the families of these names, or for all that run here and
    compute what is `requested`."""
    chosen = choose_families(names, machine.limits, workloads=requested)
    return choose_configs(kernels, dtypes, heads, chosen, named=bool(names), accuracy=accuracy)


def example(
    common: Mapping[str, Any],
    d_head: int,
    d_head_v: int,
    dtype: DType = DType.FP16,
    *,
    causal: bool = False,
) -> Workload:
    """A problem with the fields of `common`, a mask aligned bottom-right, and lengths beyond its
    window.  Raises InvalidConfig for a window wider than MOST_WINDOW."""
    sides = [
        common[side] for side in ("window_left", "window_right") if common.get(side) is not None
    ]
    widest = max(sides, default=0)
    if widest > MOST_WINDOW:
        raise InvalidConfig(
            f"a window of {widest} keys: verify tries windows of up to {MOST_WINDOW}; kernels for "
            "wider ones are the same"
        )
    found = Workload(
        *(2, 4, 2, LENGTHS[0] + widest, LENGTHS[1] + widest, d_head, dtype),
        causal=causal,
        **{**common, "d_head_v": d_head_v},
    )
    return dataclasses.replace(found, bottom_right=found.aligned)


def is_special(workload: Workload) -> bool:
    """Whether it has features that not all families compute."""
    return not workload.is_plain or workload.packed


def examples_of(config: Config, workload: Workload) -> Iterator[tuple[str, Workload]]:
    """What kernels of a config are compiled for to compute problems like one, which is ragged, and
    a problem of each kernel's: with whole blocks, unless it is packed, and with ragged lengths."""
    family = families.of(config)
    found = Traits.parse(family.traits(config, workload))
    if not workload.packed:
        rows, keys = families.blocks(config)
        filled = dataclasses.replace(workload, seq_len_kv=-(-workload.seq_len_kv // keys) * keys)
        if Traits.parse(family.traits(config, filled)).ragged:
            q = -(-workload.seq_len_q // rows) * rows
            filled = dataclasses.replace(filled, seq_len_q=q)
        yield str(dataclasses.replace(found, ragged=False)), filled
    yield str(dataclasses.replace(found, ragged=True)), workload
