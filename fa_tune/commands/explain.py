"""`fa-tune explain`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import click
from click.core import ParameterSource

from fa_tune import families
from fa_tune.commands.shared.axes import device_limits
from fa_tune.commands.shared.documents import write_document
from fa_tune.commands.shared.grouped_help import GroupedCommand
from fa_tune.commands.shared.option_groups import Output, shared_options
from fa_tune.commands.shared.options import option
from fa_tune.commands.shared.output import say, tell
from fa_tune.commands.shared.parameters import NamedPath
from fa_tune.commands.shared.progress import watching
from fa_tune.core import devices
from fa_tune.core.errors import InvalidConfig, NoUsableVariant, ToolMissing
from fa_tune.core.model import Measurement, Variant, is_reference, reference_name, reference_subject
from fa_tune.core.options import (
    REFERENCES,
    MachineOptions,
    Progress,
    SearchOptions,
    WorkloadOptions,
)
from fa_tune.core.paths import profiles_dir
from fa_tune.core.stats import median
from fa_tune.core.workload import Workload
from fa_tune.libraries import LABELS
from fa_tune.profile import profile_json
from fa_tune.profile.explain import Explanation, explain_pair, rank_correlations
from fa_tune.profile.ncu.metrics import label
from fa_tune.report.formats import text_table
from fa_tune.tune import single

CORRELATED = 8  # counters to show
ENOUGH = 5  # configs whose ranks mean something


@dataclass(frozen=True, kw_only=True)
class Explain:
    """`fa-tune explain --json`"""

    schema: Literal["fa-tune-explain-1"]
    whose: str
    explanations: Sequence[Explanation]


@click.command("explain", cls=GroupedCommand)
@click.argument("compared", nargs=-1, metavar="[A [B]]")
@option(
    "--from",
    "sources",
    multiple=True,
    type=NamedPath(),
    metavar="FILE",
    help="Read the counters that `fa-tune profile --metrics explain --json` wrote, instead of "
    "measuring; repeat it for more files.",
)
@shared_options(
    *("seq_lens", "seq_lens_kv", "batches", "heads", "kv_heads", "masks", "op"),
    *("runs", "clock_control", "seed", "as_json"),
    *("arch", "jobs", "compile_timeout_s", "device", "ncu", "recordings", "cache_dir", "quiet"),
)
def command(
    options: SearchOptions,
    compared: tuple[str, ...],
    sources: tuple[Path, ...],
    output: Output,
    quiet: bool,
) -> None:
    """Compare the counters of two kernels and say what makes one of them slower.

    A and B are short forms, or fa2 or cudnn. A alone is compared with the fastest config. Without
    both, the fastest config is compared with the runner-up, the default configs and the
    references. The difference in cycles is split by what warps waited for; the counters that
    should have changed with it are shown, and said to contradict it where they did not. With five
    configs or more, the counters that correlate with time are listed.

    On a GPU both are measured under ncu (A alone: with the default configs). Without a GPU, or
    with --from, recorded counters are explained.

    \b
    Examples:
      fa-tune explain "(FP16, 128, 64, 64, 4): async+load_0_0_0_tiles" \\
          "(FP16, 128, 64, 64, 4): async+swizzled+load_0_0_0_tiles"
      fa-tune explain --from profiles/nvidia_h200/ladder_explain.json
    """
    if len(compared) > 2:
        raise click.UsageError("two kernels at most can be compared")
    subjects = [_subject(text) for text in compared]
    with watching(quiet) as progress:
        found, whose = _measurements(subjects, sources, options, progress)
    found = _of_workloads(found, options.workloads)
    by_workload: dict[str, list[Measurement]] = {}
    for measurement in found:
        by_workload.setdefault(measurement.workload, []).append(measurement)
    explained = [e for members in by_workload.values() for e in _explained(members, subjects)]
    if not explained:
        raise NoUsableVariant(_nothing_to_compare(found, subjects))
    if output.as_json:
        write_document(Explain, whose=whose, explanations=explained)
        progress.note(f"Measurements: {whose}.")
        return
    for explanation in explained:
        first, *others = explanation.sentences
        tell(f"{explanation.workload}: {first}")
        for sentence in others:
            tell(sentence, indent="  ")
        say()
    for members in by_workload.values():
        _show_correlations([m for m in members if not is_reference(m.subject)])
    tell(f"Measurements: {whose}.")


def _measurements(
    subjects: Sequence[str],
    sources: Sequence[Path],
    options: SearchOptions,
    progress: Progress,
) -> tuple[list[Measurement], str]:
    """Counters, from files or from the GPU, and whose they are."""
    ours, machine = [s for s in subjects if not is_reference(s)], options.machine
    if not sources and ours and devices.find_device(machine.device) is not None:
        configs = [Variant.from_key(s).config for s in ours]
        references = tuple(reference_name(s) for s in subjects if is_reference(s))
        if len(subjects) == 1:  # what is fastest here is not known before a search
            configs += (defaults := _defaults(configs[0], machine))
            references = () if defaults else REFERENCES
        measure = replace(options.measure, profiler="ncu", metrics="explain", references=references)
        asked = replace(options, kernels="", measure=measure)
        result = single.profile(configs, asked, progress)
        return [a.measurement for a in result.attempts if a.measurement], result.source
    if not sources:
        folder = machine.recordings or profiles_dir()
        sources = profile_json.beside_recordings(folder)
        if not sources:
            raise ToolMissing(f"no GPU to measure on, and no counters recorded in {folder}")
    found = [m for path in sources for m in profile_json.load(path)]
    return found, "; ".join(f"{profile_json.whose(path)}, recorded in {path}" for path in sources)


def _of_workloads(found: Sequence[Measurement], workloads: WorkloadOptions) -> list[Measurement]:
    """The measurements of workloads that the options allow which were given, not left at their
    defaults; raises NoUsableVariant if there is none."""
    source = click.get_current_context().get_parameter_source

    def allowed(key: str) -> bool:
        w = Workload.from_key(key)
        values = {
            "seq_lens": w.seq_len_q in workloads.seq_lens,
            "seq_lens_kv": w.seq_len_kv in workloads.seq_lens_kv,
            "batches": w.batch in workloads.batches,
            "heads": w.heads == workloads.heads,
            "kv_heads": w.kv_heads == workloads.kv_heads,
            "masks": w.mask in workloads.masks,
            "op": w.op == workloads.op,
        }
        usual = (ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP)
        return all(value for name, value in values.items() if source(name) not in usual)

    keys = list(dict.fromkeys(m.workload for m in found))
    kept = [m for m in found if allowed(m.workload)]
    if keys and not kept:
        raise NoUsableVariant(
            f"no counters of such a workload; there are some of {', '.join(keys)}"
        )
    return kept


def _defaults(config: str, machine: MachineOptions) -> list[str]:
    """The default configs that run on the device in place of this one."""
    parsed = families.parse(config)
    dtype, d_head, d_v, op = families.kind_of(parsed)
    defaults = families.defaults(d_head, dtype, device_limits(machine), op, d_head_v=d_v)
    return [families.variant(c).config for c in defaults if c != parsed]


def _explained(found: Sequence[Measurement], subjects: Sequence[str]) -> list[Explanation]:
    """The comparisons that were asked for, on one workload; none where one is missing."""
    by_subject = {m.subject: m for m in found}
    ours = [m for m in found if not is_reference(m.subject)]
    ours.sort(key=lambda m: median(m.samples_s))
    names = {subject: _name(subject) for subject in by_subject}
    references = [s for s in by_subject if is_reference(s)]
    pairs: list[tuple[str, str]] = []
    if len(subjects) == 2:
        pairs = [(subjects[0], subjects[1])]
    elif subjects:
        others = [m.subject for m in ours if m.subject != subjects[0]][:1]
        others = others or [s for s in references if s != subjects[0]]
        pairs = [(subjects[0], other) for other in others]
    elif ours:
        winner, w = ours[0].subject, Workload.from_key(ours[0].workload)
        able = [f for f in families.all_families() if f.operation == w.op]
        defaults = {families.variant_of(f, families.default_for(f, w)).key for f in able}
        others = [m.subject for m in ours[1:2]]
        others += [s for s in by_subject if s in defaults and s != winner]
        pairs = [(winner, other) for other in dict.fromkeys(others + references)]
    return [
        explain_pair(by_subject[a], by_subject[b], names)
        for a, b in pairs
        if a in by_subject and b in by_subject
    ]


def _nothing_to_compare(found: Sequence[Measurement], subjects: Sequence[str]) -> str:
    """Which of the kernels have no counters, and which kernels have some."""
    there = list(dict.fromkeys(m.subject for m in found))
    names = ", ".join(map(_name, there)) or "nothing"
    if lacking := [_name(subject) for subject in subjects if subject not in there]:
        return f"no counters of {' and '.join(lacking)}; there are those of {names}"
    return f"no two kernels to compare on one workload; there is {names}"


def _show_correlations(ours: Sequence[Measurement]) -> None:
    """The counters whose ranks go with time, of enough configs on one workload."""
    if len(ours) >= ENOUGH:
        strongest = list(rank_correlations(ours).items())[:CORRELATED]
        rows = [[label(name), f"{rho:+.2f}"] for name, rho in strongest]
        say(f"Rank correlation with time over these {len(ours)} configs (+ goes with slower):")
        say(text_table(["metric", "rho"], rows, {"metric"}))
        say()


def _subject(text: str) -> str:
    """A config's variant key, or a reference's."""
    if text.strip().lower() in LABELS:
        return reference_subject(text.strip().lower())
    if not families.is_config(text):
        known = ", ".join(LABELS)
        raise InvalidConfig(f"{text[:60]!r} is neither a config's short form nor one of {known}")
    return families.variant(families.parse(text)).key


def _name(subject: str) -> str:
    family, _, name = subject.partition(":")
    return LABELS.get(name, name) if family == "ref" else name
