"""The tables that pages show from the recordings, as Markdown."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from fa_tune.core.workload import benchmark_workload
from fa_tune.families.sm80.config import FlashForwardKernelConfig
from recorded import (
    COUNTERS,
    DTYPES,
    LADDER,
    METHODS,
    REFERENCES,
    SEQ_LENS,
    STEPS,
    Change,
    Recorded,
    blocks_of,
    config_of,
    ms,
    ours,
    spearman,
)
from recorded_files import days

SHOWN = (*STEPS, "best", *REFERENCES)
HEADINGS = {**{r: r[1:] for r in STEPS}, "best": "best", "fa2": "FA2", "cudnn": "cuDNN"}
NEW = ("the plain kernel", "swizzle", "eager", "load tiles", "buffer", "opt_softmax", "Q stays")


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """A Markdown table; the first `words` columns are text, the rest numbers."""
    rules = ["---" if i < words else "---:" for i in range(len(headings))]
    lines = ["| " + " | ".join(headings) + " |", "|" + "|".join(rules) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def signed(value: float, digits: int = 1) -> str:
    """`+4.2`, `−1.3`; what rounds to zero has no sign."""
    text = f"{abs(value):.{digits}f}"
    if not float(text):
        return text
    return ("−" if value < 0 else "+") + text


def shown_ms(value: float) -> str:
    """A time in ms with four figures."""
    digits = 4 if value < 1 else 3 if value < 10 else 2
    return f"{value:.{digits}f}"


def conditions(data: Recorded) -> str:
    """Hardware, versions, policies and dates of the four recordings."""
    metas = [r.meta for r in data.recordings.values()]
    one = metas[0].provenance
    fixed = {(m.provenance.gpu, m.provenance.driver, m.provenance.cuda) for m in metas}
    assert len(fixed) == 1, "the recordings are not of one machine"
    (ncu,) = {m.provenance.profiler_version for m in metas if m.provenance.method == "ncu"}
    return (
        f"{one.gpu}, driver {one.driver}, CUDA {one.cuda}, NVRTC {one.nvrtc}, ncu {ncu}; "
        f"recorded {days(metas)}"
    )


def ladder(data: Recorded) -> str:
    """Time of each step, and how it stands to the step before."""
    rows = []
    for i, name in enumerate(SHOWN):
        cells = []
        for method in METHODS:
            time = data.time_ms(name, method)
            change = 100 * (data.times(name, f"r{i}", method) - 1) if name in STEPS and i else 0
            cells += [
                shown_ms(time),
                signed(change) if name in STEPS and i else "",
                f"{data.tflops(name, method):.0f}",
            ]
        what = (
            NEW[i]
            if name in STEPS
            else f"of the {data.searched} set"
            if name == "best"
            else "reference"
        )
        subject = data.subject(name)
        config = f"`{config_of(subject).short_form()}`" if name not in REFERENCES else ""
        rows.append([HEADINGS[name], what, config, *cells])
    headings = ["Step", "New", "Config"]
    for method in METHODS:
        headings += [f"{method} (ms)", "change (%)", "TFLOP/s"]
    return table(headings, rows, words=3)


def counters(data: Recorded) -> str:
    """The counters of every step."""
    rows = [
        [c.label, *(f"{data.counter(name, key):,.{c.digits}f}" for name in SHOWN)]
        for key, c in COUNTERS.items()
    ]
    rows.append(["shared memory busy, %", *(f"{data.shared_busy(n):.0f}" for n in SHOWN)])
    return table(["Counter", *(HEADINGS[n] for n in SHOWN)], rows)


def sizes(data: Recorded) -> list[str]:
    """The block sizes of the searched set, by rows, keys and warps."""
    configs = sorted(
        map(config_of, ours(data.found("ncu", LADDER))), key=lambda c: (c.B_r, c.B_c, c.n_warps)
    )
    return list(dict.fromkeys(map(blocks_of, configs)))


def blocks(data: Recorded) -> str:
    """The searched set by block size under ncu."""
    found = {config_of(s): m for s, m in ours(data.found("ncu", LADDER)).items()}
    rows = []
    for size in sizes(data):
        group = [m for c, m in found.items() if blocks_of(c) == size]
        times = sorted(ms(m) for m in group)
        held = sorted({int(m.counters[COUNTERS["registers"].metric].value) for m in group})
        hit = statistics.median(m.counters[COUNTERS["l2"].metric].value for m in group)
        registers = f"{held[0]} to {held[-1]}" if len(held) > 1 else str(held[0])
        spread = [times[0], statistics.median(times), times[-1]]
        rows.append([size, str(len(group)), *(f"{t:.3f}" for t in spread), registers, f"{hit:.1f}"])
    headings = ["Blocks", "Configs", "best (ms)", "median (ms)", "worst (ms)", "registers"]
    return table([*headings, "L2 hit (%)"], rows)


def _set(**fields: object) -> Change:
    """A change of fields that all hold their opposite before: True for False, 2 for 0."""

    def change(config: FlashForwardKernelConfig) -> FlashForwardKernelConfig | None:
        before = {name: getattr(config, name) for name in fields}
        if any(bool(value) for value in before.values()):
            return None
        return dataclasses.replace(config, **fields)  # type: ignore[arg-type]

    return change


def _number(name: str, before: int, after: int) -> Change:
    """A change of one number from one value to another."""

    def change(config: FlashForwardKernelConfig) -> FlashForwardKernelConfig | None:
        if getattr(config, name) != before:
            return None
        return dataclasses.replace(config, **{name: after})  # type: ignore[arg-type]

    return change


CHANGES = {
    "opt_softmax": _set(optimized_softmax=True),
    "buffer": _set(mma_double_buffer_loads=True),
    "interleave": _set(interleaved_softmax=True),
    "Q in 1 k-tile, not whole": _number("Q_mma_load_K_tiles", 0, 1),
    "2 stages, not 1": _number("kv_stages", 1, 2),
    "3 stages, not 2": _number("kv_stages", 2, 3),
    "K in 2 k-tiles, not whole": _set(K_mma_load_K_tiles=2),
    "V in 2 k-tiles, not whole": _set(V_mma_load_K_tiles=2),
}


def effects(data: Recorded) -> str:
    """What one field does to the time, over all pairs of the searched set that differ in it
    alone; fields without such a pair are left out."""
    rows = []
    for label, change in CHANGES.items():
        cells = []
        for size in sizes(data):
            found = data.effects(size, change)
            cells.append(
                f"{signed(statistics.median(found))} ({signed(min(found))} … {signed(max(found))})"
                if found
                else ""
            )
        if any(cells):
            rows.append([label, *cells])
    return table(["Change of time (%)", *sizes(data)], rows)


def offsets(data: Recorded) -> str:
    """events over ncu of the same kernels, and how alike the two rank them, where both measured."""
    rows = []
    for seq_len in SEQ_LENS:
        row = [str(seq_len)]
        for dtype in DTYPES:
            workload = benchmark_workload(seq_len, 128, dtype)
            by = {m: data.found(m, workload) for m in METHODS}
            carried = data.carried_over(f"{data.searched}_events", workload)
            same = sorted(set(ours(by["ncu"])) & set(ours(by["events"])) - carried)
            if not same:
                row += [""] * 3
                continue
            times = {m: [ms(by[m][s]) for s in same] for m in METHODS}
            ratios = [e / n for n, e in zip(times["ncu"], times["events"], strict=True)]
            order = spearman(times["ncu"], times["events"])
            assert order is not None
            row += [
                f"{statistics.median(ratios):.3f}",
                f"{min(ratios):.3f} to {max(ratios):.3f}",
                f"{order:.3f}",
            ]
        if any(row[1:]):
            rows.append(row)
    headings = ["seq_len"]
    for dtype in DTYPES:
        headings += [f"{dtype.name}: events / ncu", "range", "rank correlation"]
    return table(headings, rows, words=0)
