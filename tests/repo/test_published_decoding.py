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
H100 = ROOT / "profiles" / "nvidia_h100_80gb_hbm3"
KEYS, BATCHES, SHOWN = (1024, 8192, 32768, 131072), (1, 4, 16, 64, 128), (1, 16, 128)
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
    def seconds(self) -> float:
        """Median time of the choice."""
        row = self.rows[self.chosen]
        return 1e-3 * statistics.median(
            numbers(row, "held out (ms)") or numbers(row, "samples (ms)")
        )

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

    def gigabytes(self, keys: int) -> float:
        """Of Q, O, K and V in 16 bits at d_head 128, for so many keys in all."""
        heads, kv_heads, queries, batch, _ = self.sizes
        return 2 * 128 * 2 * (batch * queries * heads + keys * kv_heads) / 1e9


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


def test_lengths_on_the_device_are_what_was_recorded() -> None:
    held = {k: problem for k, problem in problems(H200).items() if k[5]}
    rows = rows_below(block("docs/results.md", "decoding"), "Lengths that the device alone knows")
    assert len(rows) == len(held)
    by_name: dict[tuple[str, ...], list[list[str]]] = {}
    for row in sorted(rows, key=_keys_of):  # longer ones have more keys
        by_name.setdefault((*row[0].split("/"), *row[1:5]), []).append(row)
    of_equal: dict[tuple[str, ...], dict[int, float]] = {}
    for key in sorted(held, key=lambda k: (k[5] != "equal", k[6], int(k[4]))):
        pages = f"pages of {key[6]}" if key[6] else "in one piece"
        row = by_name[(*key[:4], key[5], pages)].pop(0)
        problem, keys = held[key], _keys_of(row)
        if key[5] == "equal":
            assert keys == int(key[3]) * int(key[4])
        if not key[6] and key[5] == "equal":
            of_equal.setdefault(key[:4], {})[keys] = problem.seconds / keys
        bases = of_equal[key[:4]]
        base = bases[min(bases, key=lambda other: abs(other - keys))]
        assert row[6:] == [
            f"{1e6 * problem.seconds:.1f}",
            f"{(problem.gigabytes(keys) + 4e-9 * _known(key)) / problem.seconds:.0f}",
            f"{100 * problem.share:.0f}",
            f"{problem.seconds / keys / base:.3f}",
        ]


def _keys_of(row: list[str]) -> int:
    return int(row[5].replace(",", ""))


def _known(key: tuple[str, ...]) -> int:
    """Lengths and places of pages, which are read as well."""
    batch = int(key[3])
    return batch + (batch * -(-int(key[4]) // int(key[6])) if key[6] else 0)


@pytest.mark.parametrize(
    ("page", "name", "folder"),
    [("README.md", "decoding", H200), ("docs/results.md", "decoding h100", H100)],
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
