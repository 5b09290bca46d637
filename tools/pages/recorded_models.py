"""What runs without tuning on the problems of public models, beside torch's libraries, as
Markdown: tools/record_models.py wrote the file."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from recorded_files import LABELS, table

RECORDED = Path(__file__).resolve().parents[2] / "benchmarks" / "models_h200.csv"
NAMES = ("fa2", "cudnn")
BEHIND = 0.99  # times a library's speed
USES = {
    "prefill": "prefill",
    "training": "training, forward",
    "backward": "training, backward",
    "decoding": "decoding",
    "encoding": "encoding",
}


@dataclass(frozen=True)
class Problem:
    """One problem: how many times as fast as each library that takes it the default is."""

    key: str
    use: str
    models: Sequence[str]
    times: dict[str, float]

    @property
    def nearest(self) -> float:
        """By the fastest of these."""
        return min(self.times.values())


@cache
def recorded() -> tuple[Problem, ...]:
    """All of the file."""
    found = []
    for row in csv.DictReader(RECORDED.read_text(encoding="utf-8").splitlines()):
        key, times = row["workload"], {n: float(row[n]) for n in NAMES if row[n]}
        use = "backward" if key.startswith("backward") else row["use"]
        found.append(Problem(key, use, row["models"].split(), times))
    return tuple(found)


def summary() -> str:
    """By use, and each problem on which a library is faster."""
    rows = []
    for use, told in USES.items():
        own = [p for p in recorded() if p.use == use]
        compared = [p for p in own if p.times]
        behind = sum(p.nearest < BEHIND for p in compared)
        rows.append([told, str(len(own)), str(len(compared)), *_speeds(compared), str(behind)])
    named = [p for p in recorded() if p.times and p.nearest < BEHIND]
    named.sort(key=lambda p: p.nearest)
    said = "\n".join(
        f"- `{p.key}` ({p.models[0]}): {p.nearest:.2f} of {_fastest(p)}" for p in named
    )
    head = ["use", "problems", "compared", "slowest", "median", f"below {BEHIND}"]
    return "\n\n".join([table(head, rows), f"Below {BEHIND}:", said])


def sentence() -> str:
    """All in one."""
    compared = [p for p in recorded() if p.times]
    models = {name for p in compared for name in p.models}
    behind = sum(p.nearest < BEHIND for p in compared)
    return (
        f"Untuned, on {len(compared)} problems of {len(models)} [public models]"
        "(docs/results.md#public-models), forward and backward, default configs are "
        f"{statistics.median(p.nearest for p in compared):.2f} times as fast as the faster of "
        f"FlashAttention 2 and cuDNN in the median; {behind} are below {BEHIND}."
    )


def by_model() -> str:
    """A row for each model: the slowest and the median of each use."""
    rows = []
    for name in sorted({name for p in recorded() for name in p.models}):
        own = [p for p in recorded() if name in p.models and p.times]
        cells = [_speeds(p for p in own if p.use == use) for use in USES]
        rows.append([name, *(", ".join(filter(None, cell)) for cell in cells)])
    return table(["model", *USES.values()], rows)


def _speeds(problems: Iterable[Problem]) -> tuple[str, str]:
    found = [p.nearest for p in problems]
    return (f"{min(found):.2f}", f"{statistics.median(found):.2f}") if found else ("", "")


def _fastest(problem: Problem) -> str:
    return LABELS[min(problem.times, key=lambda name: problem.times[name])]
