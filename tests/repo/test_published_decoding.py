"""Every published cell of decoding, computed again from the files of the recordings, by other code
than made the page."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import statistics
from functools import cache
from pathlib import Path

import pytest

from fa_tune.core.workload import Workload
from tests.project_files import ROOT
from tests.repo.test_published_cells import block, numbers, paired, recorded_at, rows_below

H200 = ROOT / "profiles" / "nvidia_h200"
KEYS, BATCHES, SHOWN = (1024, 8192, 32768, 131072), (1, 4, 16, 64, 128), (1, 128)
READ, LIBRARIES = (
    "bare read",
    {"FA2": "FlashAttention 2", "FA4": "FlashAttention 4", "cuDNN": "cuDNN"},
)


@dataclasses.dataclass
class Problem:
    """The rows of a recording that are of one problem, by kernel, and the name of the choice."""

    sizes: tuple[int, ...]  # heads, kv_heads, queries, batch, keys of the longest
    rows: dict[str, dict[str, str]]
    chosen: str

    def ratio(self, a: str, b: str) -> float:
        """Time of a over b's, by rounds."""
        for column in ("held out, relative", "held out (ms)", "relative", "samples (ms)"):
            one, other = (numbers(self.rows[name], column) for name in (a, b))
            if one and other:
                return paired(one, other)
        raise AssertionError(f"{a} and {b} share no rounds")

    @property
    def share(self) -> float:
        """Of a bare read's speed."""
        return self.ratio(READ, self.chosen)

    @property
    def times(self) -> float:
        """Over the fastest library."""
        return min(self.ratio(name, self.chosen) for name in LIBRARIES if name in self.rows)

    @property
    def on_grid(self) -> bool:
        """Whether the tables by batch and keys have it."""
        *_, batch, keys = self.sizes
        return keys in KEYS and batch in BATCHES


@cache
def problems(folder: Path) -> dict[tuple[str, ...], Problem]:
    """What was searched for, the newest of each problem, by its sizes, lengths and pages."""
    found: dict[tuple[str, ...], Problem] = {}
    files = {p for p in folder.glob("decode_*_events.csv") if "_splits_" not in p.name}
    for path in sorted(files, key=recorded_at, reverse=True):
        here: dict[tuple[str, ...], Problem] = {}
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["outcome"] == "ok":
                    columns = ("heads", "kv_heads", "seq_len", "batch", "seq_len_kv")
                    key = tuple(row.get(c) or "" for c in (*columns, "cache_lengths", "page_size"))
                    problem = here.setdefault(key, Problem(tuple(map(int, key[:5])), {}, ""))
                    problem.rows[row["Kernel Name"]] = row
        decided = json.loads(path.with_suffix(".meta.json").read_text(encoding="utf-8"))["decided"]
        for workload, choice in decided.items():
            w = Workload.from_key(workload)
            sizes = (w.heads, w.kv_heads, w.seq_len_q, w.batch, w.seq_len_kv)
            key = (*map(str, sizes), w.cache_lengths, str(w.page_size or ""))
            here[key].chosen = choice["chosen"].partition(":")[2]
        found = here | found
    return found


def test_the_grid_is_what_was_recorded() -> None:
    text, checked = block("docs/results.md", "decoding"), 0
    for queries in ("1", "4"):
        for heads, batch, *cells in rows_below(text, f"{queries} quer"):
            for keys, cell in zip(KEYS, cells, strict=True):
                problem = problems(H200).get((*heads.split("/"), queries, batch, str(keys), "", ""))
                assert bool(cell) == (problem is not None)
                if problem is not None:
                    assert cell == f"{100 * problem.share:.0f} %, {problem.times:.2f}"
                    checked += 1
    shown = [k for k, p in problems(H200).items() if not k[5] and p.on_grid and p.sizes[3] in SHOWN]
    assert checked == len(shown)


@pytest.mark.parametrize(
    ("page", "name", "folder"),
    [("README.md", "decoding", H200)],
)
def test_the_summary_is_what_was_recorded(page: str, name: str, folder: Path) -> None:
    held = [problem for k, problem in problems(folder).items() if not k[5] and problem.on_grid]
    lines = {int(re.findall(r"\d+", line)[0]): line for line in block(page, name).splitlines()}
    assert set(lines) == {problem.sizes[2] for problem in held}
    for queries, line in lines.items():
        own = [problem for problem in held if problem.sizes[2] == queries]
        large = [100 * p.share for p in own if p.sizes[3] * p.sizes[4] * p.sizes[1] * 512 >= 260e6]
        assert f"{min(large):.0f} to {max(large):.0f} % of the speed" in line
        huge = [100 * p.share for p in own if p.sizes[3] * p.sizes[4] * p.sizes[1] * 512 >= 2e9]
        assert f"from 2 GB on {min(huge):.0f} to {max(huge):.0f} %" in line
        times = [problem.times for problem in own]
        assert f"{min(times):.2f} to {max(times):.2f} times as fast" in line
        assert f"{statistics.median(times):.2f} in the median of {len(times)}" in line
        assert f"slower in {sum(t < 1 for t in times)} of them" in line
        beside = {label for n, label in LIBRARIES.items() if any(n in p.rows for p in own)}
        assert {label for label in LIBRARIES.values() if label in line} == beside
