"""Decoding by CUDA events, as Markdown: the choices beside a bare read and the libraries."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from fa_tune.core.workload import Workload
from recorded_files import LABELS, READ, Held, between, conditions, newest, notes, ratio, table

KEYS = (1024, 8192, 32768, 131072)
BATCHES = (1, 4, 16, 64, 128)
SHOWN = (1, 128)  # batches in the tables of docs/results.md
LARGE, HUGE = 260e6, 2e9  # bytes of K and V from which on the memory's speed counts


@cache
def recorded(folder: Path) -> Mapping[Workload, Held]:
    """What was searched for, by workload; recordings of fixed splits are an experiment's."""
    files = folder.glob("decode_*_events.csv")
    return dict(sorted(newest(path for path in files if "_splits_" not in path.name).items()))


def grid(folder: Path) -> list[Held]:
    """The workloads of the grid."""
    return [
        one
        for w, one in recorded(folder).items()
        if not w.cached and w.seq_len_kv in KEYS and w.batch in BATCHES
    ]


def section(folder: Path) -> str:
    """Every cell of the grid."""
    held = list(recorded(folder).values())
    text = f"By CUDA events, cold L2, d_head 128, BF16; {conditions(held)}."
    parts = [text, notes(held, "decode"), _grid(folder)]
    return "\n\n".join(filter(None, parts))


def summary(folder: Path) -> str:
    """A line for each number of queries: times of the fastest library, shares of a bare read."""
    lines = []
    for queries in sorted({one.workload.seq_len_q for one in grid(folder)}):
        own = [one for one in grid(folder) if one.workload.seq_len_q == queries]
        large, huge = (
            [100 * _share(one) for one in own if _kv_bytes(one.workload) >= least]
            for least in (LARGE, HUGE)
        )
        times = [_times(one) for one in own]
        beside = Counter(name for one in own for name in one.libraries)
        *others, last = (
            LABELS[name] + (f" at {n} of them" if n < len(times) else "")
            for name, n in sorted(beside.items())
        )
        lines.append(
            f"- {queries} {'query' if queries == 1 else 'queries'}: {min(times):.2f} to "
            f"{max(times):.2f} times as fast as the fastest library beside it "
            f"({' and '.join(filter(None, (', '.join(others), last)))}), "
            f"{statistics.median(times):.2f} in the median of {len(times)} problems; slower in "
            f"{sum(t < 1 for t in times)} of them. Where K and V are 260 MB or more, it has "
            f"{min(large):.0f} to {max(large):.0f} % of the speed of a kernel that only reads them"
            f", from 2 GB on {between(huge, 0)} %."
        )
    return "\n".join(lines)


def _kv_bytes(w: Workload) -> int:
    return w.batch * w.seq_len_kv * w.kv_heads * (w.d_head + w.d_v) * 2


def _share(one: Held) -> float:
    return ratio(one.measured, READ, one.chosen)


def _times(one: Held) -> float:
    return min(map(one.times, one.libraries))


def _grid(folder: Path) -> str:
    tables: dict[int, dict[tuple[str, int], dict[int, str]]] = {}
    for one in grid(folder):
        w = one.workload
        if w.batch not in SHOWN:
            continue
        rows = tables.setdefault(w.seq_len_q, {})
        cell = f"{100 * _share(one):.0f} %, {_times(one):.2f}"
        rows.setdefault((f"{w.heads}/{w.kv_heads}", w.batch), {})[w.seq_len_kv] = cell
    parts = [
        "The share of a bare read's speed, and how many times as fast as the fastest library, by "
        "heads, batch and keys:"
    ]
    for queries, rows in tables.items():
        parts.append(f"{queries} {'query' if queries == 1 else 'queries'}:")
        told = [[h, str(b), *(cells.get(n, "") for n in KEYS)] for (h, b), cells in rows.items()]
        parts.append(table(["heads", "batch", *map(str, KEYS)], told))
    return "\n\n".join(parts)
