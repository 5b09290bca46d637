"""Rows from what the pipeline produced: attempts and measurements."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from fa_tune.core.model import Attempt, Measurement, Outcome, Resources, Variant
from fa_tune.core.workload import Workload
from fa_tune.core.workload_parts import parts_of
from fa_tune.libraries import label_of
from fa_tune.store.table.columns import BY_FIELD, WHOLE, counters_of
from fa_tune.store.table.partial_workload import PartialWorkload
from fa_tune.store.table.rows import Row, completed

DURATION = "gpu__time_duration.sum"
# The second is what ncu's details page shows; the two differ by up to one per cent, so that
# one table uses one of them (see `cycle_metric`).
CYCLES = ("sm__cycles_elapsed.max", "gpc__cycles_elapsed.max")


def cycle_metric(collected: Iterable[Iterable[str]]) -> str:
    """The cycle counter for a table whose rows have these metrics: the one that most have."""
    counts = dict.fromkeys(CYCLES, 0)
    for names in collected:
        for name in set(names) & counts.keys():
            counts[name] += 1
    return max(counts, key=lambda name: counts[name])  # the first one on equality


def rows_from_attempts(
    attempts: Iterable[Attempt], resources: Mapping[str, Resources] | None = None
) -> list[Row]:
    """Rows in table order, every attempt with one; `resources` by subject.

    An attempt that ended without a measurement stands beside the measured ones, if those all
    share one method and one kind of inputs.  Raises InvalidConfig for a subject or workload that
    is no key.
    """
    attempts = list(attempts)
    measured = [a.measurement for a in attempts if a.measurement is not None]
    cycles = cycle_metric(m.counters for m in measured)
    shared = Row(
        "", method=_only(m.method for m in measured), inputs=_only(m.inputs for m in measured)
    )
    known = resources or {}
    return completed(_row(a, known.get(a.subject), cycles, shared) for a in attempts)


def rows_from_measurements(measurements: Iterable[Measurement]) -> list[Row]:
    """Rows of measurements that all ended well."""
    return rows_from_attempts(
        Attempt(m.subject, m.workload, Outcome.OK, "", m) for m in measurements
    )


def _only(texts: Iterable[str]) -> str:
    """The text that all are; empty where they differ, or where there is none."""
    found = set(texts)
    return found.pop() if len(found) == 1 else ""


def workload_text(workload: Workload) -> str:
    """How tables name a workload: `seq_len 1024, d_head 128, FP16, full, batch 16, 16 heads`."""
    return str(_shape(workload).apply_to(Row("")).group)


def _shape(workload: Workload) -> PartialWorkload:
    return PartialWorkload(**parts_of(workload))


def _row(attempt: Attempt, resources: Resources | None, cycles: str, shared: Row) -> Row:
    """`shared` has what the row of a failed attempt takes from the others."""
    variant, measurement = Variant.from_key(attempt.subject), attempt.measurement
    shape = _shape(Workload.from_key(attempt.workload))
    row = shape.apply_to(
        Row(
            label_of(variant.config),
            family=variant.family,
            method=measurement.method if measurement else shared.method,
            inputs=measurement.inputs if measurement else shared.inputs,
            registers=resources.registers if resources else None,
            outcome=attempt.outcome,
            reason=attempt.reason,
        )
    )
    # A kernel whose attempt failed has no time, whatever was measured before it failed.
    if measurement is None or attempt.outcome is not Outcome.OK:
        return row
    quantities = measurement.counters
    row = replace(
        row,
        relative=measurement.relative or None,
        preference=measurement.preference,
        held_out_s=measurement.held_out_s or None,
        held_out_relative=measurement.held_out_relative or None,
    )
    counters = counters_of(
        lambda name: quantities[name].value if name in quantities else None, cycles
    )
    return with_samples(row, measurement.samples_s, counters)


def with_samples(
    row: Row, samples_s: tuple[float, ...], counters: Mapping[str, float | None]
) -> Row:
    """The row with durations (seconds, one per run) and `columns.counters_of`; what was not
    collected stays as it is."""
    if samples_s:
        row = replace(
            row,
            duration_s=statistics.fmean(samples_s),
            median_s=statistics.median(samples_s),
            min_s=min(samples_s),
            max_s=max(samples_s),
            samples_s=samples_s,
            n=len(samples_s),
        )
    known: dict[str, Any] = {
        name: round(value) if BY_FIELD[name].kind is WHOLE else value
        for name, value in counters.items()
        if value is not None
    }
    return replace(row, **known)
