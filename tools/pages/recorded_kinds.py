"""The README's table of problems off the grid, by kind: windows, sinks, soft caps, packed batches,
V of other columns, odd shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fa_tune.core.workload import Workload, labels
from recorded import Recorded
from recorded_grid import LABELS, choices, everything, held, on_grid, rate, ratio
from recorded_tables import table


@dataclass(frozen=True)
class Problems:
    """Workloads off the grid: how the README tells them, where `windows` are their sizes."""

    told: str
    include: Callable[[Workload], bool]


KINDS = {
    "gpt-oss": Problems("gpt-oss: windows of {windows}, sinks", lambda w: w.sink),
    "gemma": Problems("Gemma: windows of {windows}, a soft cap", lambda w: w.softcap is not None),
    "mistral": Problems(
        "Mistral: a window of {windows}",
        lambda w: w.windowed and not w.sink and w.softcap is None,
    ),
    "packed": Problems("packed batches of log-normal lengths", lambda w: w.packed),
    "columns": Problems("values of 128 columns", lambda w: bool(w.d_head_v)),
    "shapes": Problems(
        "odd lengths, grouped heads, few batch elements",
        lambda w: not (on_grid(w) or labels(w)),
    ),
}


def times_of_kind(data: Recorded, kind: str, reference: str) -> list[float]:
    """How many times as fast as a reference each choice of a kind of problems is."""
    return [
        ratio(one.measured, f"ref:{reference}", one.chosen)
        for w, one in held(data).items()
        if one.chosen and f"ref:{reference}" in one.measured and KINDS[kind].include(w)
    ]


def kinds_table(data: Recorded) -> str:
    """The README's of all other workloads: what the search chose, against the fastest library."""
    rows = []
    for kind in KINDS.values():
        taken = {w: subject for w, subject in choices(data).items() if kind.include(w)}
        rates, times, fastest_ones = [], [], set()
        for w, subject in taken.items():
            measured = everything(data)[w]
            libraries = {s: ratio(measured, s, subject) for s in measured if s.startswith("ref:")}
            if libraries:
                rates.append(rate(w, measured[subject]))
                times.append(min(libraries.values()))
                fastest_ones.add(min(libraries, key=libraries.__getitem__).partition(":")[2])
        if not times:
            continue
        windows = sorted({w.window_left + 1 for w in taken if w.window_left is not None})
        rows.append(
            [
                kind.told.format(windows=" and ".join(map(str, windows))),
                ", ".join(sorted({w.dtype.name for w in taken})),
                ", ".join(str(d) for d in sorted({w.d_head for w in taken})),
                _between(rates, 0),
                f"{_between(times, 2)}×",
                " or ".join(label for name, label in LABELS.items() if name in fastest_ones),
            ]
        )
    headings = ["Problem", "dtype", "d_head", "TFLOP/s", "over the fastest library", "which is"]
    return table(headings, rows, words=2) if rows else ""


def _between(values: Sequence[float], digits: int) -> str:
    """`1.03 to 1.19`; one number where both are."""
    least, most = (f"{end:.{digits}f}" for end in (min(values), max(values)))
    return least if least == most else f"{least} to {most}"
