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
    by_workload: dict[str, list[Measurement]] = {}
    for attempt in attempts:
        if attempt.measurement is not None and attempt.measurement.counters:
            by_workload.setdefault(attempt.workload, []).append(attempt.measurement)
    texts = []
    for key, measurements in by_workload.items():
        w = Workload.from_key(key)
        title = f"Counters at seq_len {w.seq_len_q}, d_head {w.d_head}, {w.dtype.name}"
        texts.append("\n".join([title, *_fitted(measurements, legend, width)]))
    return texts


def _fitted(measurements: Sequence[Measurement], legend: Legend, width: int) -> list[str]:
    columns = _columns(measurements, legend)
    lines: list[str] = []
    while columns[1:]:
        blocks = [_beside(columns[:end], width) for end in range(2, len(columns) + 1)]
        fitting = [block for block in blocks if max(map(len, block)) <= width]
        block = fitting[-1] if fitting else blocks[0]
        lines += ([""] if lines else []) + block
        columns = [columns[0], *columns[2 + blocks.index(block) :]]
    return lines


def _beside(columns: Sequence[Sequence[str]], width: int) -> list[str]:
    headings, *rows = zip(*columns, strict=True)
    return fitted(headings, rows, width, left=(METRIC,))


def _columns(measurements: Sequence[Measurement], legend: Legend) -> list[list[str]]:
    """The metrics' names, known ones in their usual order before others, then each kernel's."""
    every = {name for m in measurements for name in m.counters}
    ordered = [m for m in METRICS if m in every] + sorted(every - METRICS.keys())
    texts = [label(metric) for metric in ordered]
    # Two identifiers may have one label: then the identifier tells them apart.
    named = [m if texts.count(text) > 1 else text for m, text in zip(ordered, texts, strict=True)]
    columns = [[METRIC, *named]]
    for m in measurements:
        name = label_of(m.subject) if is_reference(m.subject) else legend.number(m.subject)
        cells = (
            units.format_quantity(m.counters[c]) if c in m.counters else NOT_COLLECTED
            for c in ordered
        )
        columns.append([name, *cells])
    return columns
