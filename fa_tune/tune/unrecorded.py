"""Workloads and configs that a replay knows nothing of: told before anything is compiled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fa_tune import families
from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.model import Attempt, Outcome
from fa_tune.core.options import Progress
from fa_tune.core.workload import FIELDS, OPTIONAL, USUAL, DType, Workload
from fa_tune.families.base import Config
from fa_tune.store.recordings import Recording
from fa_tune.store.registry.lookup import seq_len_distance
from fa_tune.tune.session import ProfilerSelection


def recorded_only(
    wanted: Sequence[Workload], selection: ProfilerSelection, progress: Progress
) -> tuple[Workload, ...]:
    """The workloads that can be measured, or that a recording holds; what is left out is warned of.

    Raises NoUsableVariant where no recording holds any of them.
    """
    if selection.capabilities.measures_anew:
        return tuple(wanted)
    held = _held(selection.recordings)
    missing = [w for w in wanted if w not in held]
    if missing and len(missing) == len(wanted):
        known = _held(selection.of_same_gpu) or held
        if other := _on_other_inputs(missing[0], selection):
            raise NoUsableVariant(other)
        raise NoUsableVariant(_sentence(missing, known))
    if missing:
        progress.warn(_sentence(missing, held, f" by {selection.method}"))
    return tuple(w for w in wanted if w in held)


def recorded_among(
    configs: Sequence[Config],
    workloads: Sequence[Workload],
    selection: ProfilerSelection,
    progress: Progress,
) -> list[Config]:
    """The configs that can be measured, or that a recording holds for one of the workloads; how
    many others there are is told."""
    if selection.capabilities.measures_anew:
        return list(configs)
    subjects = selection.recorded_for(workloads)
    held = [config for config in configs if families.variant(config).key in subjects]
    if missing := len(configs) - len(held):
        which = f"{missing} of {len(configs)} configs" if configs[1:] else "the config"
        progress.note(f"{which} {'are' if missing > 1 else 'is'} not recorded")
    return held


def not_recorded(
    subjects: Iterable[str], workload: Workload, selection: ProfilerSelection
) -> list[Attempt]:
    """Attempts at the subjects that a replay cannot answer for: compiling them would take its time
    for nothing."""
    if selection.capabilities.measures_anew:
        return []
    held = selection.recorded_for([workload])
    reason = f"no recording by {selection.method} holds it for this workload"
    return [
        Attempt(subject, workload.key, Outcome.NOT_RECORDED, reason)
        for subject in subjects
        if subject not in held
    ]


def _held(recordings: Iterable[Recording]) -> list[Workload]:
    keys = {a.workload for r in recordings for a in r.attempts if a.measurement}
    found = []
    for key in sorted(keys):
        try:
            found.append(Workload.from_key(key))
        except InvalidConfig:
            continue  # of a later version
    return found


def _on_other_inputs(workload: Workload, selection: ProfilerSelection) -> str:
    """A sentence if only recordings of other inputs, or by another method, hold the workload."""
    holding = [r for r in selection.of_same_gpu if workload in _held([r])]
    other = [r.meta.inputs for r in holding if r.meta.inputs != str(selection.inputs)]
    if not holding:
        return ""
    text = f"no recording by {selection.method} on {selection.inputs} inputs holds {workload.key}"
    if other:
        return f"{text}; take --inputs {' or '.join(dict.fromkeys(other))}, or search on a GPU"
    return f"{text}; ask for it alone, or search on a GPU"


def _sentence(missing: Sequence[Workload], held: Sequence[Workload], by: str = "") -> str:
    """`no recording holds …; the nearest has --kv-heads 16, no --sink: …`."""
    first = missing[0]
    more = f" nor {len(missing) - 1} more" if missing[1:] else ""
    text = f"no recording{by} holds {first.key}{more}"
    if not held:
        return f"{text}, or anything else"
    nearest = min(
        held,
        key=lambda w: (
            w.op != first.op,
            len(_differing(first, w)),
            seq_len_distance(first, w),
            abs(w.d_head - first.d_head),
            w.key,
        ),
    )
    options = ", ".join(dict.fromkeys(_option(n, nearest) for n in _differing(first, nearest)))
    return f"{text}; the nearest has {options}: ask for that, or search on a GPU"


def _differing(wanted: Workload, other: Workload) -> list[str]:
    """The names of the fields that differ, but for those that --lengths says, and how a window is
    aligned under one mask."""
    said = ["packed", "total_q", "total_kv"]
    if wanted.mask == other.mask:
        said += [name for name, spec in FIELDS.items() if spec.told_by == "mask"]
    return [
        name
        for name in FIELDS
        if name not in said and getattr(wanted, name) != getattr(other, name)
    ]


def _option(name: str, workload: Workload) -> str:
    """How `search` is told what a workload has: `--dtype bf16`, `no --softcap`."""
    value, spec = getattr(workload, name), FIELDS[name]
    if spec.told_by == "mask":
        return f"--mask {workload.mask}"
    flag = "--" + _PLURALS.get(name, name).replace("_", "-")
    if name != "op" and name in OPTIONAL and value == USUAL[name]:
        return f"no {flag}"
    if spec.type is bool:
        return flag
    return f"{flag} {value.name.lower() if isinstance(value, DType) else value}"


_PLURALS = {"seq_len_q": "seq_lens", "seq_len_kv": "seq_lens_kv"}
