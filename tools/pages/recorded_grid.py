"""Prompts by CUDA events, as Markdown: each family against the libraries on the benchmark's grid,
and in one line each the choices for all other problems.

Everything is compared by ratios paired within rounds.  Where the search chose a config of the
family, that one is shown: it is what a user gets.  Else it is the family's fastest.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from fa_tune.core.inputs import BUILT_IN, NORMAL
from fa_tune.core.model import Measurement
from fa_tune.core.workload import Workload, benchmark_workload, labels
from fa_tune.operations import flops
from recorded_files import LABELS, Held, between, conditions, newest, notes, ratio, seconds, table

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
H200, H100 = PROFILES / "nvidia_h200", PROFILES / "nvidia_h100_80gb_hbm3"
SEQ_LENS = (512, 1024, 2048, 4096, 8192, 16384)
SMALL = (512, 1024, 4096, 16384)  # the lengths of the README's table
AGAINST = {"sm90": ("cudnn", "fa4"), "sm80": ("fa2",)}
SHAPES = "16 heads, batch 16 up to 4096, 8 at 8192, 4 at 16384"
# Kinds of problems off the grid, as the README tells them; `{}` are the sizes of windows.
KINDS: dict[str, tuple[str, Callable[[Workload], bool]]] = {
    "gpt-oss": ("gpt-oss: windows of {}, sinks", lambda w: w.sink),
    "gemma": ("Gemma: windows of {}, a soft cap", lambda w: w.softcap is not None),
    "mistral": (
        "Mistral: a window of {}",
        lambda w: w.windowed and not w.sink and w.softcap is None,
    ),
    "packed": ("packed batches of log-normal lengths", lambda w: w.packed),
    "columns": ("values of 128 columns", lambda w: bool(w.d_head_v)),
    "shapes": (
        "odd lengths, grouped heads, few batch elements",
        lambda w: not (on_grid(w) or labels(w)),
    ),
}


@cache
def held(folder: Path) -> Mapping[Workload, Held]:
    """What counts of each workload on normal inputs."""
    found = newest(folder.glob("fast_*events.csv"))
    return {w: one for w, one in found.items() if one.meta.inputs == str(NORMAL)}


def on_grid(w: Workload) -> bool:
    """Whether a workload is one of the benchmark's, which the tables by length show."""
    usual = benchmark_workload(w.seq_len_q, w.d_head, w.dtype, causal=w.causal)
    return w == usual and w.seq_len_q in SEQ_LENS


def rate(w: Workload, measurement: Measurement) -> float:
    """TFLOP/s by 4·s²·d, with a causal mask of the unmasked pairs."""
    return flops.matmul_flop(w) / seconds(measurement) / 1e12


def shown(one: Held, family: str) -> str | None:
    """What the search chose, if that is of this family, else the family's fastest config."""
    ours = [s for s in one.measured if s.startswith(f"{family}:")]
    if one.chosen in ours or not ours:
        return one.chosen if ours else None
    base = min(ours, key=lambda s: (-len(one.measured[s].samples_s), s))
    return min(ours, key=lambda s: (ratio(one.measured, s, base, raced=True), s))


def lines(folder: Path) -> dict[tuple[int, bool, str], list[Held]]:
    """The workloads of each line of a table, by length: d_head (the usual ones first), mask,
    dtype."""
    found: dict[tuple[int, bool, str], list[Held]] = {}
    for w in sorted(filter(on_grid, held(folder)), key=_place):
        found.setdefault((w.d_head, w.causal, w.dtype.name), []).append(held(folder)[w])
    return found


def _place(w: Workload) -> tuple[int, bool, bool, int]:
    return (128, 64, 192, 256).index(w.d_head), w.causal, w.dtype.name == "BF16", w.seq_len_q


def section(folder: Path, family: str) -> str:
    """A family against the libraries, and the choices on other inputs."""
    own = [one for group in lines(folder).values() for one in group if shown(one, family)]
    parts = [f"By CUDA events ({conditions(own)}); {SHAPES}.", notes(own, family)]
    spans = []
    for name in AGAINST[family]:
        times = [
            ratio(one.measured, f"ref:{name}", shown(one, family) or "")
            for one in own
            if f"ref:{name}" in one.measured
        ]
        spans.append(f"{LABELS[name]} ({min(times):.2f} to {max(times):.2f})")
    parts += [
        f"TFLOP/s, and how many times as fast as {' and '.join(spans)}, by sequence length:",
        _grid(folder, family),
    ]
    parts += [_ab_tests(folder), _on_inputs(folder)]
    return "\n\n".join(filter(None, parts))


def _grid(folder: Path, family: str) -> str:
    rows = []
    for (d_head, causal, dtype), group in lines(folder).items():
        cells = {}
        for one in group:
            if subject := shown(one, family):
                times = [ratio(one.measured, f"ref:{n}", subject) for n in AGAINST[family]]
                told = [f"{rate(one.workload, one.measured[subject]):.0f}"]
                cells[one.workload.seq_len_q] = ", ".join([*told, *(f"{t:.2f}" for t in times)])
        if cells:
            label = f"{d_head}{', causal' if causal else ''}, {dtype}"
            rows.append([label, *(cells.get(n, "") for n in SEQ_LENS)])
    return table(["d_head, mask, dtype", *map(str, SEQ_LENS)], rows)


def _ab_tests(folder: Path) -> str:
    decided = [one.meta.decided[w.key] for w, one in held(folder).items()]
    ratios = [one.confirmed.ratio.value for one in decided if one.confirmed]
    return (
        f"{len(ratios)} choices other than the default were held against it in an A/B test after "
        f"the search, in a fresh process: they took {min(ratios):.2f} to {max(ratios):.2f} of its "
        "time."
    )


@cache
def input_costs(folder: Path) -> dict[str, dict[Workload, float]]:
    """By inputs: what each choice of sm90 takes on them, over its time on normal ones; of samples
    paired within rounds."""
    found: dict[str, dict[Workload, float]] = {}
    for w, one in held(folder).items():
        figures = one.meta.decided[w.key].on_inputs.get(one.chosen, ())
        times = {on.inputs: on.to_own_inputs for on in figures if on.to_own_inputs is not None}
        if one.chosen.startswith("sm90:") and str(NORMAL) in times:
            for inputs in set(times) - {str(NORMAL)}:
                found.setdefault(inputs, {})[w] = times[inputs] / times[str(NORMAL)]
    return found


def _on_inputs(folder: Path) -> str:
    costs = input_costs(folder)
    names = [str(spec) for spec in BUILT_IN if str(spec) in costs]
    rows = []
    for d_head in sorted({w.d_head for of in costs.values() for w in of}):
        own = [[cost for w, cost in costs[n].items() if w.d_head == d_head] for n in names]
        cells = [f"{statistics.median(c):.2f}, {max(c):.2f}" for c in own]
        rows.append([str(d_head), str(max(map(len, own))), *cells])
    return (
        "What the choices take on other [inputs](measuring.md#inputs), times what they take on "
        "normal ones: the median, and the most. They are paired within rounds.\n\n"
    ) + table(["d_head", "workloads", *names], rows)


def small_table(folder: Path) -> str:
    """The README's table of the grid: what the search chose, against the fastest library."""
    rows = []
    for (d_head, causal, dtype), group in lines(folder).items():
        if dtype == "FP16" and d_head in (64, 128):
            cells = {
                one.workload.seq_len_q: f"{rate(one.workload, one.measured[one.chosen]):.0f}, "
                f"{min(map(one.times, one.libraries)):.2f}×"
                for one in group
            }
            label = f"{d_head}, {'causal' if causal else 'full'}"
            rows.append([label, *(cells.get(n, "") for n in SMALL)])
    return table(["d_head, mask", *map(str, SMALL)], rows)


def short_section(folder: Path) -> str:
    """The same with its conditions, for another GPU than the one that the project tunes for."""
    own = [one for group in lines(folder).values() for one in group]
    return (
        f"By CUDA events ({conditions(own)}); {SHAPES}. The choices in FP16: TFLOP/s, and how many "
        f"times as fast as the fastest library, by sequence length:\n\n{small_table(folder)}"
    )


def of_kind(folder: Path, kind: str) -> list[Held]:
    """The workloads of a kind off the grid."""
    return [one for w, one in held(folder).items() if KINDS[kind][1](w)]


def kinds_table(folder: Path) -> str:
    """The README's table of all other problems: the choices against the fastest library."""
    rows = []
    for kind, (told, _) in KINDS.items():
        found = of_kind(folder, kind)
        windows = {w.window_left + 1 for o in found if (w := o.workload).window_left is not None}
        fastest = [min((one.times(n), n) for n in one.libraries) for one in found]
        names = {n for _, n in fastest}
        rows.append(
            [
                told.format(" and ".join(map(str, sorted(windows)))),
                ", ".join(sorted({one.workload.dtype.name for one in found})),
                ", ".join(map(str, sorted({one.workload.d_head for one in found}))),
                between([rate(one.workload, one.measured[one.chosen]) for one in found], 0),
                f"{between([t for t, _ in fastest], 2)}×",
                " or ".join(label for name, label in LABELS.items() if name in names),
            ]
        )
    headings = ["Problem", "dtype", "d_head", "TFLOP/s", "over the fastest library", "which is"]
    return table(headings, rows, words=2)


def pictured(folder: Path) -> str:
    """The picture docs/speed_h200.svg in words."""
    grid = [one for group in lines(folder).values() for one in group]
    return (
        "TFLOP/s by 4·s²·d (causal: half) and the ratio to the faster library; d_head 128, "
        f"{SHAPES}. With {conditions(grid)}."
    )
