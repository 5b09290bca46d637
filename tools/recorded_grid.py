"""The grid of workloads by CUDA events, as Markdown: the best config of each family against the
libraries, which config that is, and what keeping one config for several workloads would cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from fa_tune import families
from fa_tune.core.model import Measurement, Workload
from fa_tune.ops import flops
from fa_tune.store.recordings import load
from recorded import FOLDER, REFERENCES, Recorded, ms
from recorded_tables import table

H100 = FOLDER.parent / "nvidia_h100_80gb_hbm3"
D_HEADS = (128, 64)  # those that most models have stand first in a table, the others by size
AGAINST = {"sm90": ("cudnn", "fa4"), "sm80": ("fa2", "cudnn")}  # the first is what is compared
LABELS = {"fa2": "FlashAttention 2", "cudnn": "cuDNN", "fa4": "FlashAttention 4"}
Cells = Mapping[Workload, Mapping[str, Measurement]]


@cache
def cells(data: Recorded) -> Cells:
    """Measurements by workload and subject.  All of a workload are of one recording, and so of
    one run; of several that hold it the searched set's own goes first."""
    found: dict[Workload, dict[str, Measurement]] = {}
    own = data.folder / f"{data.grid_set}_events.csv"
    others = sorted(set(data.folder.glob(f"{data.grid_set}_*events.csv")) - {own})
    for path in (own, *others):
        recording: dict[Workload, dict[str, Measurement]] = {}
        for attempt in load(path).attempts:
            if attempt.measurement is not None:
                workload = Workload.from_key(attempt.workload)
                recording.setdefault(workload, {})[attempt.subject] = attempt.measurement
        for workload, measured in recording.items():
            found.setdefault(workload, measured)
    return found


def grid_conditions(data: Recorded) -> str:
    """Hardware, versions and date of the grid's recordings."""
    metas = [load(p).meta for p in sorted(data.folder.glob(f"{data.grid_set}_*events.csv"))]
    one = metas[0].provenance
    assert len({(m.provenance.gpu, m.provenance.driver, m.provenance.nvrtc) for m in metas}) == 1
    dates = sorted({m.provenance.recorded_at[:10] for m in metas})
    return (
        f"{one.gpu}, driver {one.driver}, CUDA {one.cuda}, NVRTC {one.nvrtc}; "
        f"recorded {' to '.join(dates)}"
    )


def of_family(measured: Mapping[str, Measurement], family: str) -> dict[str, Measurement]:
    """One family's measurements by subject."""
    return {s: m for s, m in measured.items() if s.startswith(f"{family}:")}


def fastest(measured: Mapping[str, Measurement], family: str) -> tuple[str, Measurement] | None:
    """The config with the least median time; of equals the first by name."""
    ours = of_family(measured, family)
    return min(ours.items(), key=lambda item: (ms(item[1]), item[0])) if ours else None


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


def against(data: Recorded, family: str, reference: str) -> str:
    """TFLOP/s of the family's best config, and how many times as fast as the reference it is;
    empty if the recordings lack either."""
    rows = []
    for line, workloads in lines(data).items():
        row = {}
        for w in workloads:
            measured = cells(data)[w]
            best, other = fastest(measured, family), measured.get(f"ref:{reference}")
            if best is not None and other is not None:
                rate = f"{flops.matmul_flop(w) / ms(best[1]) / 1e9:.0f}"
                # A ratio is of one run; a reference whose samples are another run's gives none.
                elsewhere = f"ref:{reference}" in _carried_over(data, w)
                ratio = "" if elsewhere else f", {ms(other) / ms(best[1]):.2f}"
                row[w.seq_len_q] = rate + ratio
        if row:
            rows.append([label(line), *(row.get(n, "") for n in _lengths(data))])
    return table(["d_head, mask, dtype", *map(str, _lengths(data))], rows) if rows else ""


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
        w: _form(best[0])
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
    measured = [m for w in workloads if (m := of_family(cells(data)[w], family))]
    if len(measured) < 2:
        return None
    everywhere = set.intersection(*(set(m) for m in measured))
    best = [min(map(ms, m.values())) for m in measured]

    def lost(subject: str) -> list[float]:
        return [ms(m[subject]) / b - 1 for m, b in zip(measured, best, strict=True)]

    if not everywhere:
        return None
    chosen = min(everywhere, key=lambda s: (statistics.fmean(lost(s)), s))
    return chosen, lost(chosen)


def results(data: Recorded) -> str:
    """The README's block: each family against the library that it is meant to beat."""
    parts = [
        f"The best config of the {data.grid_set} set for each workload, by CUDA events "
        f"({grid_conditions(data)}); 16 heads, benchmark shapes; TFLOP/s by 4·s²·d, half of it "
        "with a causal mask, and how many times as fast as the library it is, both in one process, "
        "interleaved."
    ]
    for family, words in (
        ("sm90", "**sm90** (`wgmma`, TMA)"),
        ("sm80", "**sm80** (`mma.sync`, for every GPU since Ampere; on sm_90 with warps in turns)"),
    ):
        for reference in AGAINST[family]:
            made = against(data, family, reference)
            if made and (reference == AGAINST[family][0] or reference == "fa4"):
                parts += [f"{words} against {LABELS[reference]}:", made]
    return "\n\n".join(parts)


def section(data: Recorded, family: str, others: Iterable[str] = ()) -> str:
    """A family's page: against the libraries, the winners, and what one config would lose."""
    parts = [
        f"By CUDA events ({grid_conditions(data)}); the {data.grid_set} set, 16 heads, "
        "benchmark shapes."
    ]
    for reference in dict.fromkeys((*AGAINST[family], *others)):
        made = against(data, family, reference)
        if made:
            parts += [f"TFLOP/s, and how many times as fast as {LABELS[reference]}:", made]
    made = winners(data, family)
    if made:
        parts += ["The fastest config of each workload:", made]
    made = losses(data, family)
    if made:
        parts += [
            "What keeping one config for a line of workloads costs, against the best of each: the "
            "config that loses least on the mean.",
            made,
        ]
    return "\n\n".join(parts)


def on_h100(family: str) -> str:
    """A family's tables against the libraries on an H100."""
    data = Recorded(H100)
    parts = [f"By CUDA events ({grid_conditions(data)}), as above; FP16."]
    for reference in (*AGAINST[family], *(("fa2",) if family == "sm90" else ())):
        parts += [
            f"TFLOP/s, and how many times as fast as {LABELS[reference]}:",
            against(data, family, reference),
        ]
    return "\n\n".join(parts)


def wins(data: Recorded) -> str:
    """docs/why-this-wins.md."""
    return section(data, "sm80")


def wins_sm90(data: Recorded) -> str:
    """docs/kernel-sm90.md."""
    return section(data, "sm90", ("fa2",))


assert set(REFERENCES) <= set(LABELS)
