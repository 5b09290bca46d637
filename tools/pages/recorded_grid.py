"""The grid of workloads by CUDA events, as Markdown: each family against the libraries, which
config is the fastest, and what keeping one config for several workloads would cost.

Everything is compared by ratios paired within rounds.  Where the search chose a config of the
family, that one is shown: it is what a user gets.  Else it is the family's fastest.  What is shown
of a choice is of the held-out rounds, where the recording has them: by these nothing was chosen.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from fa_tune import families
from fa_tune.core.inputs import BUILT_IN, NORMAL
from fa_tune.core.model import Measurement
from fa_tune.core.stats import comparable, median
from fa_tune.core.workload import Workload, benchmark_workload, labels, unusual_labels
from fa_tune.operations import flops
from fa_tune.store.recordings import load_meta
from recorded import FOLDER, REFERENCES, SEQ_LENS, Recorded
from recorded_files import Held, conditions, newest, notes
from recorded_tables import table

H100 = FOLDER.parent / "nvidia_h100_80gb_hbm3"
D_HEADS = (128, 64)  # those that most models have stand first in a table, the others by size
AGAINST = {"sm90": ("cudnn", "fa4"), "sm80": ("fa2",)}
SMALL = (512, 1024, 4096, 16384)  # the lengths of the README's table
SHAPES = "16 heads, batch 16 up to 4096, 8 at 8192, 4 at 16384"
LABELS = {"fa2": "FlashAttention 2", "cudnn": "cuDNN", "fa4": "FlashAttention 4"}
Cells = Mapping[Workload, Mapping[str, Measurement]]


def cells(data: Recorded) -> Cells:
    """Measurements by workload of the grid and subject."""
    return {w: found for w, found in everything(data).items() if on_grid(w)}


def on_grid(w: Workload) -> bool:
    """Whether a workload is one of the benchmark's, which the tables by length show."""
    usual = benchmark_workload(w.seq_len_q, w.d_head, w.dtype, causal=w.causal)
    return w == usual and w.seq_len_q in SEQ_LENS


@cache
def held(data: Recorded) -> Mapping[Workload, Held]:
    """What counts of each workload, of the recordings with the inputs of the searched set's own."""
    own = data.folder / f"{data.grid_set}_events.csv"
    found = [own, *set(data.folder.glob(f"{data.grid_set}_*events.csv")) - {own}]
    return newest(p for p in found if load_meta(p).inputs == load_meta(own).inputs)


@cache
def everything(data: Recorded) -> Cells:
    """Measurements by workload and subject."""
    return {w: one.measured for w, one in held(data).items()}


@cache
def choices(data: Recorded) -> Mapping[Workload, str]:
    """The subject that the recorded search chose, by workload."""
    return {w: one.chosen for w, one in held(data).items() if one.chosen}


def held_out(measured: Mapping[str, Measurement], *subjects: str) -> dict[str, Measurement]:
    """The measurements of these by their held-out samples; empty if one has none."""
    found = {s: measured[s] for s in subjects}
    if not all(m.held_out_s for m in found.values()):
        return {}
    return {
        s: replace(m, samples_s=m.held_out_s, relative=m.held_out_relative)
        for s, m in found.items()
    }


def ratio(measured: Mapping[str, Measurement], a: str, b: str) -> float:
    """Time of `a` over time of `b`: the median of the ratios within the rounds of both, of the
    held-out ones where both have them."""
    return raced(held_out(measured, a, b) or measured, a, b)


def raced(measured: Mapping[str, Measurement], a: str, b: str) -> float:
    """The same of the samples that the search chose by."""
    compared = comparable(
        {s: m.samples_s for s, m in measured.items()}, {s: m.relative for s, m in measured.items()}
    )
    return statistics.median(x / y for x, y in zip(compared[a], compared[b], strict=False))


def grid_conditions(data: Recorded) -> str:
    """Hardware, versions and date of the grid's recordings."""
    return conditions(one.meta for w, one in held(data).items() if not labels(w))


def of_family(measured: Mapping[str, Measurement], family: str) -> dict[str, Measurement]:
    """One family's measurements by subject."""
    return {s: m for s, m in measured.items() if s.startswith(f"{family}:")}


def fastest(measured: Mapping[str, Measurement], family: str) -> str | None:
    """The family's config with the least time; of equals the first by name."""
    ours = of_family(measured, family)
    if not ours:
        return None
    base = min(ours, key=lambda subject: (-len(ours[subject].samples_s), subject))
    return min(ours, key=lambda subject: (raced(measured, subject, base), subject))


def shown(data: Recorded, workload: Workload, family: str) -> str | None:
    """What the search chose, if that is of this family, else the family's fastest config."""
    measured = cells(data)[workload]
    chosen = choices(data).get(workload, "")
    return chosen if chosen in of_family(measured, family) else fastest(measured, family)


def rate(workload: Workload, measurement: Measurement) -> float:
    """TFLOP/s by 4·s²·d, with a causal mask of the unmasked pairs; of the held-out samples where
    there are any."""
    seconds = median(measurement.held_out_s or measurement.samples_s)
    return flops.matmul_flop(workload) / seconds / 1e12


def lines(data: Recorded) -> dict[tuple[int, bool, str], list[Workload]]:
    """The workloads of each line of a table, by length: d_head, mask, dtype."""

    def place(w: Workload) -> tuple[int, int, bool, int]:
        first = D_HEADS.index(w.d_head) if w.d_head in D_HEADS else len(D_HEADS)
        return first, w.d_head, w.causal, -ord(w.dtype.name[0])

    found: dict[tuple[int, bool, str], list[Workload]] = {}
    for w in sorted(cells(data), key=place):
        found.setdefault((w.d_head, w.causal, w.dtype.name), []).append(w)
    return {line: sorted(group, key=lambda w: w.seq_len_q) for line, group in found.items()}


def label(line: tuple[int, bool, str]) -> str:
    """`128, causal, BF16`."""
    d_head, causal, dtype = line
    return f"{d_head}{', causal' if causal else ''}, {dtype}"


def _lengths(data: Recorded) -> list[int]:
    return sorted({w.seq_len_q for w in cells(data)})


def against(data: Recorded, family: str, *references: str) -> str:
    """TFLOP/s of the family's config, and how many times as fast as each reference it is; empty
    if the recordings lack either."""
    rows = []
    for line, workloads in lines(data).items():
        row = {}
        for w in workloads:
            measured, subject = cells(data)[w], shown(data, w, family)
            if subject is not None and any(f"ref:{name}" in measured for name in references):
                times = [_times(data, w, subject, f"ref:{name}") for name in references]
                row[w.seq_len_q] = ", ".join([f"{rate(w, measured[subject]):.0f}", *times])
        if row:
            rows.append([label(line), *(row.get(n, "") for n in _lengths(data))])
    return table(["d_head, mask, dtype", *map(str, _lengths(data))], rows) if rows else ""


def _times(data: Recorded, workload: Workload, subject: str, reference: str) -> str:
    """A dash where the reference was not recorded in the same run: ratios are of one run."""
    measured = cells(data)[workload]
    if reference not in measured or reference in _carried_over(data, workload):
        return "–"
    return f"{ratio(measured, reference, subject):.2f}"


def _carried_over(data: Recorded, workload: Workload) -> set[str]:
    """Subjects whose samples the grid shares with the ladder's older recording."""
    if not data.has_ladder or data.grid_set != data.searched:
        return set()
    return data.carried_over(f"{data.searched}_events", workload)


def _form(subject: str) -> str:
    """The short form without the dtype, which both types share."""
    config = families.parse(subject.partition(":")[2])
    return str(config).replace(config.dtype.name, "dtype", 1)


def winners(data: Recorded, family: str) -> str:
    """Which config is the fastest of each workload, by its letter, most frequent first."""
    by_cell = {
        w: _form(best)
        for w, measured in cells(data).items()
        if (best := fastest(measured, family)) is not None
    }
    if not by_cell:
        return ""
    counts = {form: list(by_cell.values()).count(form) for form in by_cell.values()}
    ordered = sorted(counts, key=lambda form: (-counts[form], form))
    letters = {form: _letters(i) for i, form in enumerate(ordered)}
    rows = []
    for line, workloads in lines(data).items():
        row = {w.seq_len_q: letters[by_cell[w]] for w in workloads if w in by_cell}
        if row:
            rows.append([label(line), *(row.get(n, "") for n in _lengths(data))])
    legend = "\n".join(f"- {letter}: `{form}`" for form, letter in letters.items())
    return f"{table(['d_head, mask, dtype', *map(str, _lengths(data))], rows)}\n\n{legend}"


def _letters(number: int) -> str:
    """a, b, …, z, aa, ab, …"""
    head, tail = divmod(number, 26)
    return (_letters(head - 1) if head else "") + chr(ord("a") + tail)


def losses(data: Recorded, family: str) -> str:
    """What the best single config loses against the best of each workload: in one line of the
    grid, and over all workloads of a d_head and dtype where both masks were recorded."""
    rows = []
    groups = {label(line): group for line, group in lines(data).items()}
    for d_head, dtype in dict.fromkeys((line[0], line[2]) for line in lines(data)):
        both = [
            w for line, g in lines(data).items() if (line[0], line[2]) == (d_head, dtype) for w in g
        ]
        if len({w.causal for w in both}) == 2:
            groups[f"{d_head}, both masks, {dtype}"] = both
    for name, workloads in groups.items():
        found = one_config(data, family, workloads)
        if found is not None:
            subject, lost = found
            rows.append(
                [
                    name,
                    f"`{subject.partition(':')[2]}`",
                    f"{100 * statistics.fmean(lost):.1f}",
                    f"{100 * max(lost):.1f}",
                ]
            )
    headings = ["d_head, mask, dtype", "Best single config", "mean loss (%)", "worst (%)"]
    return table(headings, rows, words=2) if rows else ""


def one_config(
    data: Recorded, family: str, workloads: Sequence[Workload]
) -> tuple[str, list[float]] | None:
    """The config that loses least on the mean of workloads, and its losses (fractions of the best
    config's time, one per workload); None where the family has fewer than two of them."""
    kept = [cells(data)[w] for w in workloads if of_family(cells(data)[w], family)]
    if len(kept) < 2:
        return None
    everywhere = set.intersection(*(set(of_family(m, family)) for m in kept))
    if not everywhere:
        return None
    best = [fastest(m, family) for m in kept]

    def lost(subject: str) -> list[float]:
        return [
            # Pairs of configs share different rounds, so a tie may read as a gain.
            max(0.0, ratio(m, subject, b) - 1)
            for m, b in zip(kept, best, strict=True)
            if b is not None
        ]

    chosen = min(everywhere, key=lambda s: (statistics.fmean(lost(s)), s))
    return chosen, lost(chosen)


def small_table(data: Recorded) -> str:
    """The README's: what the search chose, against the fastest library beside it."""
    rows = []
    for line, workloads in lines(data).items():
        d_head, causal, dtype = line
        if dtype != "FP16" or d_head not in D_HEADS:
            continue
        by_length = {}
        for w in workloads:
            measured, subject = cells(data)[w], choices(data)[w]
            libraries = [s for s in measured if s.startswith("ref:")]
            times = min(ratio(measured, s, subject) for s in libraries)
            by_length[w.seq_len_q] = f"{rate(w, measured[subject]):.0f}, {times:.2f}×"
        mask = "causal" if causal else "full"
        rows.append([f"{d_head}, {mask}", *(by_length.get(n, "") for n in SMALL)])
    return table(["d_head, mask", *map(str, SMALL)], rows)


def ab_tests(data: Recorded) -> str:
    """How the choices stood to the default in a process of their own; empty if none was tested."""
    decided = [one.meta.decided.get(w.key) for w, one in held(data).items()]
    ratios = [one.confirmed.ratio for one in decided if one is not None and one.confirmed]
    if not ratios:
        return ""
    return (
        f"{len(ratios)} choices other than the default were held against it in an A/B test after "
        f"the search, in a fresh process: they took {min(ratios):.2f} to {max(ratios):.2f} of its "
        "time."
    )


@dataclass(frozen=True)
class InputCosts:
    """By inputs: what each choice of a family takes on them, over its time on normal ones; and the
    workloads whose kinds of inputs were timed one after another, so that these are no ratios of
    paired samples."""

    ratios: Mapping[str, Mapping[Workload, float]]
    unpaired: frozenset[Workload]


@cache
def input_costs(data: Recorded, family: str) -> InputCosts:
    """What the recordings have of it."""
    found: dict[str, dict[Workload, float]] = {}
    unpaired = set()
    for w, one in held(data).items():
        decided = one.meta.decided.get(w.key)
        if decided is None or not one.chosen.startswith(f"{family}:"):
            continue
        figures = decided.on_inputs.get(one.chosen, ())
        paired = {on.inputs: on.to_own_inputs for on in figures if on.to_own_inputs is not None}
        is_paired = len(paired) == len(figures)
        times = paired if is_paired else {on.inputs: on.median_s for on in figures}
        if str(NORMAL) not in times:
            continue
        if not is_paired:
            unpaired.add(w)
        for inputs, time in times.items():
            if inputs != str(NORMAL):
                found.setdefault(inputs, {})[w] = time / times[str(NORMAL)]
    return InputCosts(found, frozenset(unpaired))


def on_inputs(data: Recorded, family: str) -> str:
    """The same by d_head; empty where it was not measured."""
    costs = input_costs(data, family).ratios
    names = [str(spec) for spec in BUILT_IN if str(spec) in costs]
    rows = []
    for d_head in sorted({w.d_head for of in costs.values() for w in of}):
        own = [[cost for w, cost in costs[n].items() if w.d_head == d_head] for n in names]
        cells = [f"{statistics.median(c):.2f}, {max(c):.2f}" if c else "" for c in own]
        rows.append([str(d_head), str(max(map(len, own))), *cells])
    return table(["d_head", "workloads", *names], rows) if rows else ""


def pairing(data: Recorded, family: str) -> str:
    """How far these ratios are of samples taken beside each other."""
    costs = input_costs(data, family)
    workloads = {w for of in costs.ratios.values() for w in of}
    drift = "so the clock's drift of some per cent is in them."
    if not costs.unpaired:
        return "They are paired within rounds."
    if costs.unpaired == workloads:
        return f"These are not paired, {drift}"
    return f"Those of {len(costs.unpaired)} workloads are not paired, {drift}"


def off_grid(data: Recorded) -> str:
    """What the search chose for shapes off the grid, against each library beside it; empty
    without such a recording."""

    def told(w: Workload) -> list[str]:
        return [f"{w.seq_len_q}, {w.mask}", w.dtype.name, str(w.d_head)]

    wanted = [w for w in everything(data) if not (on_grid(w) or labels(w))]
    return _against_each(data, wanted, ["seq_len, mask", "dtype", "d_head"], told)


def more_kinds(data: Recorded) -> str:
    """The same of windows, sinks, soft caps, V of other heads and packed batches."""

    def told(w: Workload) -> list[str]:
        d_heads = f"{w.d_head}/{w.d_v}" if w.d_head_v else f"{w.d_head}"
        about = [
            f"{w.seq_len_q}",
            w.mask,
            *(t for f, t in unusual_labels(w, short=True) if f != "d_head_v"),
        ]
        return [", ".join(about), w.dtype.name, d_heads]

    wanted = [w for w in everything(data) if labels(w)]
    return _against_each(data, wanted, ["seq_len, mask, scores", "dtype", "d_head"], told)


def more_conditions(data: Recorded) -> str:
    """The conditions of these recordings."""
    return conditions(one.meta for w, one in held(data).items() if labels(w))


def _against_each(
    data: Recorded,
    workloads: Iterable[Workload],
    headings: Sequence[str],
    told: Callable[[Workload], list[str]],
) -> str:
    """The choices of a search, a row for each workload, which `told` describes."""
    names = ("fa2", *AGAINST["sm90"])
    rows = []
    for w in sorted(workloads, key=lambda w: (w.heads, w.batch, w.d_head, w.key)):
        subject = choices(data).get(w)
        if subject is None:
            continue
        measured = everything(data)[w]
        times = [
            f"{ratio(measured, f'ref:{n}', subject):.2f}" if f"ref:{n}" in measured else ""
            for n in names
        ]
        heads = f"{w.heads}" if w.kv_heads == w.heads else f"{w.heads} ({w.kv_heads} kv)"
        rows.append([*told(w), str(w.batch), heads, f"{rate(w, measured[subject]):.0f}", *times])
    given = [*headings, "batch", "heads", "TFLOP/s", *(LABELS[n] for n in names)]
    return table(given, rows, words=2) if rows else ""


def span(data: Recorded, family: str, reference: str) -> str:
    """`1.08 to 1.38`: how many times as fast as a reference a family is, over all workloads."""
    found = [
        ratio(measured, f"ref:{reference}", subject)
        for w, measured in cells(data).items()
        if (subject := shown(data, w, family)) and f"ref:{reference}" in measured
    ]
    return f"{min(found):.2f} to {max(found):.2f}"


def section(data: Recorded, family: str) -> str:
    """A family against the libraries, its fastest configs, and what one config would lose."""
    parts = [f"By CUDA events ({grid_conditions(data)}); {SHAPES}."]
    if made := notes((h for h in held(data).values() if of_family(h.measured, family)), family):
        parts.append(made)
    taken = [m for m in cells(data).values() if of_family(m, family)]
    references = [r for r in AGAINST[family] if any(f"ref:{r}" in m for m in taken)]
    if references:
        times = " and ".join(f"{LABELS[r]} ({span(data, family, r)})" for r in references)
        parts += [
            f"TFLOP/s, and how many times as fast as {times}, by sequence length:",
            against(data, family, *references),
        ]
    if family == "sm90" and (made := ab_tests(data)):
        parts.append(made)
    if made := on_inputs(data, family):
        parts += [
            "What the choices take on other [inputs](measuring.md#inputs), times what they take on "
            f"normal ones: the median, and the most. {pairing(data, family)}",
            made,
        ]
    if family == "sm90" and (made := off_grid(data)):
        parts += ["Shapes off the grid: TFLOP/s, and how many times as fast as each library:", made]
    if family == "sm90" and (made := more_kinds(data)):
        parts += [
            "Windows, sinks, soft caps, V of other heads, and packed batches (the longest sequence "
            f"is `seq_len`); {more_conditions(data)}. TFLOP/s of the pairs that are seen, and "
            "how many times as fast as each library:",
            made,
        ]
    if not data.has_ladder:  # another GPU than the one that the project tunes for
        return "\n\n".join(parts)
    made = winners(data, family)
    if made:
        what = f"The fastest config of the {data.grid_set} set for each workload"
        parts += [f"{what}, by sequence length and letter:", made]
    made = losses(data, family)
    if made:
        parts += [
            "Where one config has to serve a whole line, the one that loses least on average:",
            made,
        ]
    return "\n\n".join(parts)


def pictured(data: Recorded) -> str:
    """What docs/speed_h200.svg shows, in words."""
    return (
        f"TFLOP/s by 4·s²·d (causal: half), d_head 128, {SHAPES}; "
        f"{grid_conditions(data)}. The number is the ratio to the faster library."
    )


assert set(REFERENCES) <= set(LABELS)
