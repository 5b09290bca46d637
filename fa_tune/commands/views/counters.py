"""Counters side by side: one line per metric, one column per kernel."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.commands.shared.output import text_table
from fa_tune.core import units
from fa_tune.core.model import Attempt, Measurement, Variant, is_reference
from fa_tune.core.workload import Workload
from fa_tune.families.reference_kernels import REFERENCE_LABELS
from fa_tune.profile.ncu.metrics import METRICS, RANK, label

METRIC = "metric"
NOT_COLLECTED = "–"  # never a zero


def explains(attempts: Sequence[Attempt]) -> bool:
    """Whether any counter goes beyond those that rank kernels."""
    found = {name for a in attempts if a.measurement for name in a.measurement.counters}
    return bool(found - set(RANK))


def counter_tables(attempts: Sequence[Attempt]) -> list[str]:
    """One table per workload, with a legend of its columns; none where nothing was counted."""
    by_workload: dict[str, list[Measurement]] = {}
    for attempt in attempts:
        if attempt.measurement is not None and attempt.measurement.counters:
            by_workload.setdefault(attempt.workload, []).append(attempt.measurement)
    return [_table(key, found) for key, found in by_workload.items()]


def _table(workload: str, measurements: Sequence[Measurement]) -> str:
    names = _column_names(measurements)
    ordered = _metrics(measurements)
    repeated = {text for text in map(label, ordered) if [*map(label, ordered)].count(text) > 1}
    rows = [
        [
            # Two identifiers may have one label: then the identifier tells them apart.
            metric if label(metric) in repeated else label(metric),
            *(
                units.format_quantity(m.counters[metric]) if metric in m.counters else NOT_COLLECTED
                for m in measurements
            ),
        ]
        for metric in ordered
    ]
    legend = [
        f"{name} = {Variant.from_key(m.subject).config}"
        for name, m in zip(names, measurements, strict=True)
        if not _is_reference(m)
    ]
    w = Workload.from_key(workload)
    title = f"Counters at seq_len {w.seq_len_q}, d_head {w.d_head}, {w.dtype.name}"
    return "\n".join([title, text_table([METRIC, *names], rows, {METRIC}), *legend])


def _column_names(measurements: Sequence[Measurement]) -> list[str]:
    """References by their label, ours as A, B, …: short forms are too long for a column."""
    names = []
    ours = 0
    for m in measurements:
        if _is_reference(m):
            key = Variant.from_key(m.subject).config
            names.append(REFERENCE_LABELS.get(key, key))
        else:
            names.append(_letters(ours))
            ours += 1
    return names


def _letters(index: int) -> str:
    """A … Z, AA, AB, …"""
    text = ""
    index += 1
    while index:
        index, place = divmod(index - 1, 26)
        text = chr(ord("A") + place) + text
    return text


def _metrics(measurements: Sequence[Measurement]) -> list[str]:
    """Known metrics in their usual order, then the others by name."""
    found = {name for m in measurements for name in m.counters}
    return [m for m in METRICS if m in found] + sorted(found - METRICS.keys())


def _is_reference(measurement: Measurement) -> bool:
    return is_reference(measurement.subject)
