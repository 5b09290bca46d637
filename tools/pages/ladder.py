"""The ladder's recordings on an H200: its tables as Markdown, and the values that sentences quote.

A *subject* is `r1` to `r7` (the steps), `best` (the config of the searched set that was profiled
with the ladder), `fa2` or `cudnn`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from fa_tune.core.model import Measurement
from fa_tune.core.stats import comparable
from fa_tune.core.workload import DType, benchmark_workload
from fa_tune.families.sm80.sets import PROGRESSION
from fa_tune.operations import flops
from fa_tune.store.recordings import Recording, load
from fa_tune.store.table.columns import REGISTERS
from fa_tune.store.table.from_attempts import CYCLES
from recorded_files import days, table
from recorded_grid import H200

LADDER = benchmark_workload(4096, 128, DType.FP16)
METHODS = ("ncu", "events")
STEPS = {f"r{i}": f"sm80:{config}" for i, config in enumerate(PROGRESSION, start=1)}
REFERENCES = {"fa2": "ref:fa2", "cudnn": "ref:cudnn"}
SHOWN = (*STEPS, "best", *REFERENCES)
HEADINGS = [*(step[1:] for step in STEPS), "best", "FA2", "cuDNN"]
NEW = ("the plain kernel", "swizzle", "eager", "load tiles", "buffer", "opt_softmax", "Q stays")
MULTIPROCESSORS = 132  # of an H200; the recordings do not say
BUSY = "busy"  # shared memory, in %: wavefronts over one for each cycle and multiprocessor

_STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
_ACTIVE = "avg.pct_of_peak_sustained_active"
_SHARED = "l1tex__data_{}_mem_shared.sum"
# By the word of a figure: what it is, the metric, its scale and decimals.
COUNTERS: dict[str, tuple[str, str, float, int]] = {
    "cycles": ("elapsed cycles, millions", CYCLES[0], 1e-6, 2),
    "registers": ("registers per thread", REGISTERS, 1, 0),
    "instructions": ("warp instructions, millions", "smsp__inst_executed.sum", 1e-6, 0),
    "tensor": ("tensor pipe active, %", f"sm__pipe_tensor_op_hmma_cycles_active.{_ACTIVE}", 1, 1),
    "conflicts": (
        "bank conflicts, shared memory, millions",
        _SHARED.format("bank_conflicts_pipe_lsu"),
        1e-6,
        1,
    ),
    "wavefronts": (
        "wavefronts, shared memory, millions",
        _SHARED.format("pipe_lsu_wavefronts"),
        1e-6,
        0,
    ),
    "long": ("stalled: long scoreboard (global)", _STALL.format("long_scoreboard"), 1, 2),
    "short": ("stalled: short scoreboard (shared)", _STALL.format("short_scoreboard"), 1, 2),
    "wait": ("stalled: wait (fixed latency)", _STALL.format("wait"), 1, 2),
    BUSY: ("shared memory busy, %", "", 1, 0),
}


@cache
def recording(name: str) -> Recording:
    """`fast_ncu`, `prog_events`, …"""
    return load(H200 / f"{name}.csv")


@cache
def explained() -> Mapping[str, Mapping[str, Any]]:
    """The counters of the ladder, by subject and metric."""
    document = json.loads((H200 / "ladder_explain.json").read_text(encoding="utf-8"))
    found = [one for one in document["measurements"] if one["workload"] == LADDER.key]
    return {one["subject"]: one["counters"] for one in found}


def subject(name: str) -> str:
    """The full name of `r1`, `best`, `fa2`, …"""
    (best,) = set(explained()) - {*STEPS.values(), *REFERENCES.values()}
    return {**STEPS, **REFERENCES, "best": best}[name]


def timed(name: str, method: str) -> Measurement:
    """What a subject was ranked by; steps and references from the ladder's own run."""
    attempts = recording(f"{'fast' if name == 'best' else 'prog'}_{method}").attempts
    wanted = subject(name), LADDER.key
    (found,) = [a.measurement for a in attempts if (a.subject, a.workload) == wanted]
    assert found is not None
    return found


def times(name: str, base: str, method: str) -> float:
    """Time of a subject over another's: by events the median of the ratios within the rounds of
    both, under ncu, where each launch stands alone, of the medians."""
    both = {n: timed(n, method) for n in (name, base)}
    if method == "ncu":
        return value("ncu", name) / value("ncu", base)
    compared = comparable(
        {n: m.samples_s for n, m in both.items()}, {n: m.relative for n, m in both.items()}
    )
    return statistics.median(a / b for a, b in zip(compared[name], compared[base], strict=False))


def value(what: str, name: str) -> float:
    """A value of one subject: `ncu` or `events` (ms), `tflops`, or a counter of COUNTERS; raises
    KeyError for what is none of these."""
    if what in METHODS:
        return statistics.median(timed(name, what).samples_s) * 1e3
    if what == "tflops":
        return flops.matmul_flop(LADDER) / value("ncu", name) / 1e9
    if what == BUSY:
        per_cycle = MULTIPROCESSORS * value("cycles", name)
        return 100 * value("wavefronts", name) / per_cycle
    _, metric, scale, _ = COUNTERS[what]
    return float(explained()[subject(name)][metric]["value"]) * scale


def figure(what: str, of: str) -> str:
    """A figure in a sentence, as it is to be shown: `r3`, a value; `r1/r2`, how many times as large
    the first is; `r3:r4`, the change from the first to the second in %, with its sign."""
    for mark in ":/":
        if mark in of:
            a, b = of.split(mark)
            other, one = (a, b) if mark == ":" else (b, a)
            timed_both = times(one, other, what) if what in METHODS else None
            factor = timed_both or value(what, one) / value(what, other)
            if mark == ":":
                return signed(100 * (factor - 1))
            return f"{factor:.{1 if factor > 3 else 2}f}"
    return shown(what, value(what, of))


def shown(what: str, number: float) -> str:
    """A value with the decimals of its kind; times in ms with four figures."""
    if what in METHODS:
        return f"{number:.{4 if number < 1 else 3 if number < 10 else 2}f}"
    return f"{number:,.{0 if what == 'tflops' else COUNTERS[what][3]}f}"


def signed(number: float) -> str:
    """`+4.2`, `−1.3`; what rounds to zero has no sign."""
    text = f"{abs(number):.1f}"
    return text if not float(text) else ("−" if number < 0 else "+") + text


def conditions() -> str:
    """Hardware, versions and dates of the four recordings."""
    metas = [recording(f"{s}_{m}").meta for s in ("fast", "prog") for m in METHODS]
    one = metas[0].provenance
    fixed = {(m.provenance.gpu, m.provenance.driver, m.provenance.cuda) for m in metas}
    assert len(fixed) == 1, "the recordings are not of one machine"
    (ncu,) = {m.provenance.profiler_version for m in metas if m.provenance.method == "ncu"}
    return (
        f"{one.gpu}, driver {one.driver}, CUDA {one.cuda}, NVRTC {one.nvrtc}, ncu {ncu}; "
        f"recorded {days(metas)}"
    )


def steps() -> str:
    """Time of each step, and how it stands to the step before."""
    rows = []
    for i, name in enumerate(SHOWN):
        cells = []
        for method in METHODS:
            change = figure(method, f"r{i}:{name}") if name in STEPS and i else ""
            tflops = flops.matmul_flop(LADDER) / value(method, name) / 1e9
            cells += [shown(method, value(method, name)), change, f"{tflops:.0f}"]
        what = NEW[i] if name in STEPS else "of the fast set" if name == "best" else "reference"
        config = "" if name in REFERENCES else f"`{subject(name).removeprefix('sm80:')}`"
        rows.append([HEADINGS[i], what, config, *cells])
    headings = ["Step", "New", "Config"]
    for method in METHODS:
        headings += [f"{method} (ms)", "change (%)", "TFLOP/s"]
    return table(headings, rows, words=3)


def counters() -> str:
    """The counters of every step."""
    rows = [
        [label, *(shown(key, value(key, name)) for name in SHOWN)]
        for key, (label, *_) in COUNTERS.items()
    ]
    return table(["Counter", *HEADINGS], rows)


TABLES: dict[str, Callable[[], str]] = {
    "conditions": conditions,
    "ladder": steps,
    "counters": counters,
}
