"""The numbers of a page that come from counters: how busy kernels are, what they wait for, and why
one loses."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from fa_tune.core.errors import FaTuneError
from fa_tune.core.model import Measurement, Quantity, is_reference
from fa_tune.core.roofline import ROOFS
from fa_tune.core.units import format_quantity
from fa_tune.profile.explain import cycles_by_family, explain_pair
from fa_tune.profile.ncu.metrics import (
    DRAM_READ,
    DRAM_WRITE,
    ISSUE_ACTIVE,
    METRICS,
    TENSOR_PIPE,
    XU_PIPE,
    label,
)
from fa_tune.report.page.figures import Records
from fa_tune.report.page.source import Source
from fa_tune.store.table.from_attempts import rows_from_measurements

# What may bound a kernel, and the counter of how busy it is.
UNITS = {"tensor cores": TENSOR_PIPE, "exponentials": XU_PIPE, "issue slots": ISSUE_ACTIVE}
MEMORY = "memory"


# Of each workload the GPU's name, and what was measured with counters: all by one method.
Profiled = Sequence[tuple[str, Sequence[Measurement]]]


def by_workload(sources: Iterable[Source]) -> Profiled:
    """What was measured with counters, by workload of a source: by the first one's method."""
    out: list[tuple[str, Sequence[Measurement]]] = []
    for source in sources:
        found: dict[str, list[Measurement]] = {}
        for measured in source.profiled:
            members = found.setdefault(measured.workload, [])
            if not members or members[0].method == measured.method:
                members.append(measured)
        out += [(source.gpu, members) for members in found.values()]
    return out


def counters(profiled: Profiled, numbers: Mapping[str, str]) -> Records:
    """Time and counters of every profiled kernel: one record for each kernel and counter that is
    not zero on all.  `share` is the value over the largest of its line."""
    out: Records = []
    for _, measured in profiled:
        of_kernels = [
            (m, {"time": _time(m)} | {label(n): m.counters[n] for n in METRICS if n in m.counters})
            for m in measured
            if m.counters
        ]
        for line in dict.fromkeys(name for _, values in of_kernels for name in values):
            known = [(m, values[line]) for m, values in of_kernels if line in values]
            most = max(quantity.value for _, quantity in known)
            out += [
                _of_kernel(m, numbers)
                | {
                    "counter": line,
                    "value": quantity.value,
                    "shown": format_quantity(quantity),
                    "share": quantity.value / most,
                }
                for m, quantity in known
                if most > 0
            ]
    return out


def _time(measurement: Measurement) -> Quantity:
    return Quantity(statistics.median(measurement.samples_s), "s")


def busy(profiled: Profiled, numbers: Mapping[str, str]) -> Records:
    """How busy each profiled kernel keeps what may bound it, in percent of the peak, by `UNITS`."""
    return [
        _of_kernel(measured, numbers) | shares
        for gpu, several in profiled
        for measured in several
        for shares in [_shares_of_peaks(measured, gpu)]
        if shares
    ]


def _shares_of_peaks(measured: Measurement, gpu: str) -> dict[str, float]:
    counters = measured.counters
    found = {u: counters[name].value for u, name in UNITS.items() if name in counters}
    if found and gpu in ROOFS and DRAM_READ in counters and DRAM_WRITE in counters:
        rate = (counters[DRAM_READ].value + counters[DRAM_WRITE].value) / _time(measured).value
        found[MEMORY] = 100 * rate / ROOFS[gpu].bytes_per_s
    return found


def waits(profiled: Profiled, numbers: Mapping[str, str]) -> Records:
    """What the warps of each profiled kernel spend their cycles on, in percent, by `REASONS`."""
    return [
        _of_kernel(measured, numbers)
        | {cause: 100 * cycles / sum(split.values()) for cause, cycles in split.items()}
        for _, several in profiled
        for measured in several
        for split in [cycles_by_family(measured)]
        if split
    ]


def _of_kernel(measured: Measurement, numbers: Mapping[str, str]) -> dict[str, str | float]:
    (row,) = rows_from_measurements([measured])
    return {
        "workload": str(row.group),
        "config": numbers.get(measured.subject, row.kernel),
        "kernel": row.kernel,
    }


def explanations(profiled: Profiled, numbers: Mapping[str, str]) -> Records:
    """Winner against runner-up on every workload that has counters of both: one record per kind
    of cause, its cycles in percent of the winner's, so that they add up to what the runner-up
    takes longer; below 0 where the runner-up spends fewer."""
    out: Records = []
    for _, measured in profiled:
        members = [m for m in measured if not is_reference(m.subject)]
        members.sort(key=lambda m: statistics.median(m.samples_s))
        if len(members) < 2:
            continue
        try:
            pair = explain_pair(members[1], members[0], numbers)
        except FaTuneError:
            continue
        out += [
            {
                "workload": _of_kernel(members[0], numbers)["workload"],
                "winner": numbers[pair.fast],
                "runner_up": numbers[pair.slow],
                "cause": finding.cause,
                "more_percent": 100 * finding.share * abs(pair.cycle_ratio - 1),
                "sentences": "" if i else " ".join(pair.sentences),
            }
            for i, finding in enumerate(pair.findings)
        ]
    return out
