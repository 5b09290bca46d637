"""Every published cell of docs/results.md and the README, computed again from the files of the
recordings, by other code than made the pages."""

from __future__ import annotations

import csv
import json
import re
import statistics
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.core.lengths import lengths_of
from fa_tune.core.model import Variant
from fa_tune.core.workload import Workload
from tests.project_files import ROOT

PROFILES = ROOT / "profiles"
GPUS = {"h200": "nvidia_h200", "h100": "nvidia_h100_80gb_hbm3"}
LIBRARIES = {"sm90": ("cuDNN", "FA4"), "sm80": ("FA2",)}
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SMALL = (512, 1024, 4096, 16384)


@dataclass(frozen=True)
class Shape:
    """A workload as a table has it."""

    seq_len: int
    d_head: int
    dtype: str
    causal: bool
    batch: int
    heads: int
    kv_heads: int
    d_v: int = 0  # where it is not d_head
    left: int | None = None
    softcap: float | None = None
    sink: bool = False
    lengths: str = ""

    @property
    def flop(self) -> float:
        """Two products of 2·d operations per pair of a query and a key that it sees."""
        of_pair = 2 * self.d_head + 2 * (self.d_v or self.d_head)
        n = self.seq_len
        if not self.lengths:
            return of_pair * self.pairs(n) * self.batch * self.heads
        members = lengths_of(self.lengths, self.batch, n, n)
        return of_pair * sum(self.pairs(q) for q, _ in members) * self.heads

    def pairs(self, n: int) -> float:
        """Of so many queries and keys, and one head."""
        if self.left is not None and self.left < n:
            hidden = n - 1 - self.left  # queries that do not see the first key
            return n * (n + 1) / 2 - hidden * (hidden + 1) / 2
        return n * (n + 1) / 2 if self.causal else n * n

    @property
    def is_plain(self) -> bool:
        """Whether it has nothing of all that."""
        return self == Shape(*astuple(self)[:7])


@dataclass(frozen=True)
class Subject:
    """A row of a recording: seconds and ratios to the default, of the race and held out."""

    family: str
    samples_s: tuple[float, ...]
    relative: tuple[float, ...]
    held_out_s: tuple[float, ...]
    held_out_relative: tuple[float, ...]


@dataclass(frozen=True)
class Table:
    """What was measured of one workload, by the kernel's name, and the name of the choice."""

    subjects: dict[str, Subject]
    chosen: str

    def ratio(self, a: str, b: str, *, raced: bool = False) -> float:
        """Time of a over b's, paired by rounds."""
        one, other = self.subjects[a], self.subjects[b]
        if one.held_out_s and other.held_out_s and not raced:
            beside = one.held_out_relative and other.held_out_relative
            pair = (one.held_out_relative, other.held_out_relative)
            return paired(*(pair if beside else (one.held_out_s, other.held_out_s)))
        if all(len(s.relative) == len(s.samples_s) for s in self.subjects.values()):
            return paired(one.relative, other.relative)
        return paired(one.samples_s, other.samples_s)

    def holds(self, family: str) -> bool:
        """Whether a kernel of the family was recorded."""
        return any(s.family == family for s in self.subjects.values())

    def shown(self, family: str) -> str:
        """The choice, or the fastest of another family."""
        names = [n for n, s in self.subjects.items() if s.family == family]
        if self.chosen in names:
            return self.chosen
        base = max(sorted(names), key=lambda n: len(self.subjects[n].samples_s))
        return min(sorted(names), key=lambda n: self.ratio(n, base, raced=True))

    def seconds(self, name: str) -> float:
        """Median time."""
        subject = self.subjects[name]
        return statistics.median(subject.held_out_s or subject.samples_s)


def paired(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    """Median of the ratios within rounds."""
    return statistics.median(x / y for x, y in zip(a, b, strict=False))


def numbers(row: dict[str, str], heading: str, scale: float = 1.0) -> tuple[float, ...]:
    """The numbers of a cell."""
    return tuple(float(word) * scale for word in (row.get(heading) or "").split())


def newest_first(gpu: str) -> list[Path]:
    """A GPU's recordings of forward passes by events."""
    found = sorted((PROFILES / GPUS[gpu]).glob("fast_*events.csv"))
    forward = [path for path in found if not path.name.startswith("fast_backward")]
    return sorted(forward, key=recorded_at, reverse=True)


@cache
def tables(gpu: str) -> dict[Shape, Table]:
    """What the recordings of a GPU hold by events; the newest file that has a shape counts."""
    found: dict[Shape, Table] = {}
    for path in newest_first(gpu):
        chosen = choices(path)
        here: dict[Shape, dict[str, Subject]] = {}
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["outcome"] == "ok" and row["samples (ms)"]:
                    name = today(row["family"], row["Kernel Name"])
                    here.setdefault(shape(row), {})[name] = Subject(
                        row["family"],
                        numbers(row, "samples (ms)", 1e-3),
                        numbers(row, "relative"),
                        numbers(row, "held out (ms)", 1e-3),
                        numbers(row, "held out, relative"),
                    )
        for of, subjects in here.items():
            found.setdefault(of, Table(subjects, chosen.get(of, "")))
    return found


def recorded_at(path: Path) -> str:
    """When a recording was taken."""
    meta = json.loads(path.with_suffix(".meta.json").read_text(encoding="utf-8"))
    return str(meta["provenance"]["recorded_at"])


def shape(row: dict[str, str]) -> Shape:
    """The shape of a row; the queries' length is the keys'."""
    assert row["seq_len"] == row["seq_len_kv"]
    sizes = [int(row[name]) for name in ("batch", "heads", "kv_heads")]
    left, cap = row.get("window_left"), row.get("softcap")
    return Shape(
        *(int(row["seq_len"]), int(row["d_head"]), row["dtype"], row["causal"] == "true", *sizes),
        int(row.get("d_head_v") or 0),
        int(left) if left else None,
        float(cap) if cap else None,
        row.get("sink") == "true",
        row.get("lengths") or "",
    )


def choices(path: Path) -> dict[Shape, str]:
    """The kernel that the recorded search chose."""
    decided = json.loads(path.with_suffix(".meta.json").read_text(encoding="utf-8"))["decided"]
    return {
        shape_of(Workload.from_key(key)): today(*one["chosen"].split(":", 1))
        for key, one in decided.items()
    }


def shape_of(w: Workload) -> Shape:
    """The shape of a workload."""
    sizes = (w.seq_len_q, w.d_head, w.dtype.name, w.causal, w.batch, w.heads, w.kv_heads)
    return Shape(*sizes, w.d_head_v, w.window_left, w.softcap, w.sink, w.lengths)


def today(family: str, kernel: str) -> str:
    """A kernel's name, which in the file may be of an older release."""
    return kernel if family == "ref" else families.canonical(Variant(family, kernel)).config


def benchmark(seq_len: int, d_head: int, dtype: str, *, causal: bool) -> Shape:
    """The shape of a cell: 16 heads, 16 batch elements up to 4096 and then 65536 queries."""
    batch = 16 if seq_len <= 4096 else 65536 // seq_len
    return Shape(seq_len, d_head, dtype, causal, batch, 16, 16)


def block(page: str, name: str) -> str:
    """What stands between a page's comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None
    return found[1]


def rows_below(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table after a line that begins so."""
    lines = text[re.search(rf"^{heading}", text, re.MULTILINE).start() :].splitlines()  # type: ignore[union-attr]
    start = next(i for i, line in enumerate(lines) if line.startswith("|---"))
    found = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_the_grid_is_what_was_recorded() -> None:
    family = "sm90"
    checked, ratios = 0, {name: [] for name in LIBRARIES[family]}  # type: ignore[var-annotated]
    text = block("docs/results.md", f"{family} h200")
    for what, *cells in rows_below(text, "TFLOP/s, and"):
        d_head, *mask, dtype = what.split(", ")
        for seq_len, cell in zip(LENGTHS, cells, strict=True):
            of = benchmark(seq_len, int(d_head), dtype, causal=mask == ["causal"])
            if not cell:
                assert of not in tables("h200") or not tables("h200")[of].holds(family)
                continue
            table = tables("h200")[of]
            ours = table.shown(family)
            expected = [f"{of.flop / table.seconds(ours) / 1e12:.0f}"]
            for name in LIBRARIES[family]:
                ratios[name].append(table.ratio(name, ours))
                expected.append(f"{ratios[name][-1]:.2f}")
            assert cell == ", ".join(expected), of
            checked += 1
    held = [of for of, table in tables("h200").items() if of == on_grid(of) and table.holds(family)]
    assert checked == len(held)
    for found in ratios.values():
        assert f"({min(found):.2f} to {max(found):.2f})" in text


def on_grid(of: Shape) -> Shape | None:
    """The benchmark's shape with these sizes, where there is one."""
    if of.seq_len not in LENGTHS or not of.is_plain:
        return None
    return benchmark(of.seq_len, of.d_head, of.dtype, causal=of.causal)


@pytest.mark.parametrize(
    ("page", "name", "gpu"),
    [("README.md", "speed", "h200"), ("docs/results.md", "sm90 h100", "h100")],
)
def test_the_small_table_is_what_was_recorded(page: str, name: str, gpu: str) -> None:
    rows = rows_below(block(page, name), r"\| d_head, mask \| 512")
    assert len(rows) == 4
    for what, *cells in rows:
        d_head, mask = what.split(", ")
        for seq_len, cell in zip(SMALL, cells, strict=True):
            of = benchmark(seq_len, int(d_head), "FP16", causal=mask == "causal")
            if not cell:
                assert of not in tables(gpu)
                continue
            table = tables(gpu)[of]
            libraries = [n for n, s in table.subjects.items() if s.family == "ref"]
            times = min(table.ratio(n, table.chosen) for n in libraries)
            rate = of.flop / table.seconds(table.chosen) / 1e12
            assert cell == f"{rate:.0f}, {times:.2f}×", of


KINDS = {
    "gpt-oss": lambda of: of.sink,
    "Gemma": lambda of: of.softcap is not None,
    "Mistral": lambda of: of.left is not None and not of.sink and of.softcap is None,
    "packed batches": lambda of: bool(of.lengths),
    "values of 128 columns": lambda of: bool(of.d_v),
    "odd lengths": lambda of: of.is_plain and of != on_grid(of),
}


def test_other_problems_of_the_readme_are_what_was_recorded() -> None:
    rows = {row[0]: row[1:] for row in rows_below(block("README.md", "kinds"), r"\| Problem")}
    told = {next(kind for kind in KINDS if label.startswith(kind)): label for label in rows}
    for kind, is_of in KINDS.items():
        taken = {of: table for of, table in tables("h200").items() if is_of(of)}
        assert (kind in told) == bool(taken)
        if not taken:
            continue
        fastest = [
            min((t.ratio(n, t.chosen), n) for n, s in t.subjects.items() if s.family == "ref")
            for t in taken.values()
        ]
        rates = [of.flop / t.seconds(t.chosen) / 1e12 for of, t in taken.items()]
        *heads, rate, times, libraries = rows[told[kind]]
        assert heads == [
            ", ".join(sorted({of.dtype for of in taken})),
            ", ".join(map(str, sorted({of.d_head for of in taken}))),
        ]
        assert rate == " to ".join(dict.fromkeys(f"{end(rates):.0f}" for end in (min, max)))
        ends = (f"{end(fastest)[0]:.2f}" for end in (min, max))
        assert times == " to ".join(dict.fromkeys(ends)) + "×"
        names = {"FlashAttention 2": "FA2", "FlashAttention 4": "FA4"}
        assert {names.get(n, n) for n in libraries.split(" or ")} == {n for _, n in fastest}
        windows = {of.left + 1 for of in taken if of.left is not None}
        assert all(f"{size}" in told[kind] for size in windows)


def test_what_the_kernels_page_says_of_values_of_other_columns_was_recorded() -> None:
    times = [t.ratio("cuDNN", t.chosen) for of, t in tables("h200").items() if of.d_v]
    page = (ROOT / "docs/kernel-sm90.md").read_text(encoding="utf-8")
    for end, name in ((min, "least"), (max, "most")):
        assert f"{end(times):.2f}<!-- times columns cudnn {name} -->" in page


def input_costs() -> dict[tuple[int, str], list[float]]:
    """By d_head and inputs: the time of each choice on them over that on normal ones."""
    found: dict[tuple[int, str], list[float]] = {}
    newest: set[Shape] = set()
    for path in newest_first("h200"):
        decided = json.loads(path.with_suffix(".meta.json").read_text())["decided"]
        for key, choice in decided.items():
            of, on = shape_of(Workload.from_key(key)), choice.get("on_inputs", {})
            figures = {one["inputs"]: one["to_own_inputs"] for one in on.get(choice["chosen"], [])}
            if of not in newest and choice["chosen"].startswith("sm90:"):
                for inputs in figures.keys() - {"normal"}:
                    ratio = figures[inputs] / figures["normal"]
                    found.setdefault((of.d_head, inputs), []).append(ratio)
        newest |= set(choices(path))
    return found


def test_what_other_inputs_cost_is_what_was_recorded() -> None:
    costs, text = input_costs(), block("docs/results.md", "sm90 h200")
    rows = rows_below(text, "What the choices take on other")
    lines = text[text.index("What the choices take on other") :].splitlines()
    names = [cell.strip() for cell in next(x for x in lines if x[0:1] == "|").strip("|").split("|")]
    assert {row[0] for row in rows} == {str(d_head) for d_head, _ in costs}
    for row in rows:
        for name, cell in list(zip(names, row, strict=True))[2:]:
            own = costs[int(row[0]), name]
            assert cell == f"{statistics.median(own):.2f}, {max(own):.2f}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("peaked:12", "falling"):
        own = [100 * (cost - 1) for (_, on), of in costs.items() if on == name for cost in of]
        assert f"{statistics.median(own):.0f}<!-- cost {name} median -->" in readme
        assert f"{max(own):.0f}<!-- cost {name} most -->" in readme
