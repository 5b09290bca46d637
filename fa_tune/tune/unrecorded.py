"""Workloads that a replay knows nothing of: told before anything is compiled."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.core.errors import InvalidConfig, NoUsableVariant
from fa_tune.core.options import Progress
from fa_tune.core.workload import Workload
from fa_tune.core.workload_parts import parts_of
from fa_tune.tune.session import ProfilerSelection


def recorded_only(
    wanted: Sequence[Workload], selection: ProfilerSelection, progress: Progress
) -> tuple[Workload, ...]:
    """The workloads that can be measured, or that a recording holds; what is left out is warned of.

    Raises NoUsableVariant where no recording holds any of them.
    """
    if selection.capabilities.measures_anew:
        return tuple(wanted)
    held = _held(selection)
    missing = [w for w in wanted if w not in held]
    if missing and len(missing) == len(wanted):
        raise NoUsableVariant(_sentence(missing, held, selection.method))
    if missing:
        progress.warn(_sentence(missing, held, selection.method))
    return tuple(w for w in wanted if w in held)


def _held(selection: ProfilerSelection) -> list[Workload]:
    keys = {a.workload for r in selection.recordings for a in r.attempts if a.measurement}
    found = []
    for key in sorted(keys):
        try:
            found.append(Workload.from_key(key))
        except InvalidConfig:
            continue  # of a later version
    return found


def _sentence(missing: Sequence[Workload], held: Sequence[Workload], method: str) -> str:
    """`no recording by events holds …: heads of keys are 4; the nearest has 16 (…)`."""
    first = missing[0]
    more = f" nor {len(missing) - 1} more" if missing[1:] else ""
    text = f"no recording by {method} holds {first.key}{more}"
    if not held:
        return f"{text}, or anything else"
    nearest = min(held, key=lambda w: (len(_differences(first, w)), _distance(first, w), w.key))
    differences = [
        f"{name} {mine}, not {theirs}" for name, mine, theirs in _differences(first, nearest)
    ]
    return (
        f"{text}: the nearest is {nearest.key} ({', '.join(differences)}); ask for that one, or "
        "search on a GPU"
    )


def _differences(wanted: Workload, other: Workload) -> list[tuple[str, object, object]]:
    """What differs, by name, with both values: of `other` first."""
    a, b = parts_of(wanted), parts_of(other)
    return [(name, _shown(b[name]), _shown(a[name])) for name in a if a[name] != b[name]]


def _shown(value: object) -> object:
    return "none" if value in (None, "") else getattr(value, "name", value)


def _distance(wanted: Workload, other: Workload) -> float:
    """How far the lengths are apart."""
    return abs(wanted.seq_len_q - other.seq_len_q) + abs(wanted.seq_len_kv - other.seq_len_kv)
