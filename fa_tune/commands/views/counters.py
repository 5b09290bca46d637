"""Counters side by side: one line per metric, one column per kernel."""

from __future__ import annotations

from collections.abc import Sequence

from fa_tune.core import units
from fa_tune.core.model import Attempt, Measurement, is_reference
from fa_tune.core.workload import Workload
from fa_tune.libraries import label_of
from fa_tune.profile.ncu.metrics import METRICS, RANK, label
from fa_tune.report.fitted import Legend, fitted

METRIC = "metric"
NOT_COLLECTED = "–"  # never a zero


def explains(attempts: Sequence[Attempt]) -> bool:
    """Whether any counter goes beyond those that rank kernels."""
    found = {name for a in attempts if a.measurement for name in a.measurement.counters}
    return bool(found - set(RANK))


def counter_tables(attempts: Sequence[Attempt], legend: Legend, width: int) -> list[str]:
    """One table per workload with configs by number, as many columns beside one another as fit;
    none where nothing was counted."""
    return [_fitted(key, found, legend, width) for key, found in _by_workload(attempts).items()]


def _by_workload(attempts: Sequence[Attempt]) -> dict[str, list[Measurement]]:
    by_workload: dict[str, list[Measurement]] = {}
    for attempt in attempts:
        if attempt.measurement is not None and attempt.measurement.counters:
            by_workload.setdefault(attempt.workload, []).append(attempt.measurement)
    return by_workload


def _fitted(workload: str, measurements: Sequence[Measurement], legend: Legend, width: int) -> str:
    names = [
        label_of(m.subject) if is_reference(m.subject) else legend.number(m.subject)
        for m in measurements
    ]
    columns = list(zip(*_cells(measurements), strict=True))
    headings = [METRIC, *names]
    lines: list[str] = []
    begin = 1
    while begin < len(headings):
        end = begin + 1
        block = _columns_beside(headings, columns, begin, end, width)
        while end < len(headings):
            more = _columns_beside(headings, columns, begin, end + 1, width)
            if max(map(len, more)) > width:
                break
            block, end = more, end + 1
        lines += ([""] if lines else []) + block
        begin = end
    return "\n".join([_title(workload), *lines])


def _columns_beside(
    headings: Sequence[str], columns: Sequence[Sequence[str]], begin: int, end: int, width: int
) -> list[str]:
    chosen = (0, *range(begin, end))
    rows = list(zip(*(columns[i] for i in chosen), strict=True))
    return fitted([headings[i] for i in chosen], rows, width, left=(METRIC,))


def _cells(measurements: Sequence[Measurement]) -> list[list[str]]:
    """A line per metric: its name, then each kernel's."""
    ordered = _metrics(measurements)
    repeated = {text for text in map(label, ordered) if [*map(label, ordered)].count(text) > 1}
    return [
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


def _title(workload: str) -> str:
    w = Workload.from_key(workload)
    return f"Counters at seq_len {w.seq_len_q}, d_head {w.d_head}, {w.dtype.name}"


def _metrics(measurements: Sequence[Measurement]) -> list[str]:
    """Known metrics in their usual order, then the others by name."""
    found = {name for m in measurements for name in m.counters}
    return [m for m in METRICS if m in found] + sorted(found - METRICS.keys())
