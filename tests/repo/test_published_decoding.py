"""Every published cell of decoding, computed again from the files of the recordings, by other code
than made the page: from those that come with the project, and from made-up ones."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
import statistics
from collections.abc import Iterable
from pathlib import Path

import pytest

import recorded_decode
from fa_tune.core.arch import limits
from fa_tune.core.model import Attempt, Measurement, Outcome
from fa_tune.core.workload import DType, Workload
from fa_tune.store import recordings
from fa_tune.store.recordings import Decided, Meta
from fa_tune.tune.candidates import default_keys
from recorded import Recorded
from tests.project_files import ROOT
from tests.repo.test_published_cells import block, numbers, paired, recorded_at, rows_below
from tests.store.test_recordings import ORIGIN
from tests.tune.fakes import H200

SHIPPED = ROOT / "profiles" / "nvidia_h200"
H100 = ROOT / "profiles" / "nvidia_h100_80gb_hbm3"
MARGIN = 0.01
READ, LIBRARIES = "bare read", ("FA2", "cuDNN", "FA3", "FA4")
TILE = "decode(BF16, 128, 16, 128, 8): stages_2"
CHOSEN, OTHER = f"decode:{TILE}+aligned", f"decode:{TILE}+ctas_1"


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

    def raced(self, a: str, b: str) -> float:
        """The same of the rounds that the search chose by."""
        return paired(*(numbers(self.rows[name], "relative") for name in (a, b)))

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

    def gigabytes(self, keys: int) -> float:
        """Of Q, O, K and V in 16 bits at d_head 128, for so many keys in all."""
        heads, kv_heads, queries, batch, _ = self.sizes
        return 2 * 128 * 2 * (batch * queries * heads + keys * kv_heads) / 1e9


def problems(files: Iterable[Path]) -> dict[tuple[str, ...], Problem]:
    """What files hold, the newest of each problem, by its sizes, lengths and pages."""
    found: dict[tuple[str, ...], Problem] = {}
    for path in sorted(files, key=recorded_at, reverse=True):
        decided = json.loads(path.with_suffix(".meta.json").read_text(encoding="utf-8"))["decided"]
        here: dict[tuple[str, ...], Problem] = {}
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["outcome"] != "ok":
                    continue
                columns = ("heads", "kv_heads", "seq_len", "batch", "seq_len_kv")
                key = tuple(row.get(c) or "" for c in (*columns, "cache_lengths", "page_size"))
                problem = here.setdefault(key, Problem(tuple(map(int, key[:5])), {}, ""))
                problem.rows[row["Kernel Name"]] = row
        for workload, choice in decided.items():
            w = Workload.from_key(workload)
            sizes = (w.heads, w.kv_heads, w.seq_len_q, w.batch, w.seq_len_kv)
            pages = str(w.page_size or "")
            here[*map(str, sizes), w.cache_lengths, pages].chosen = choice["chosen"].partition(":")[
                2
            ]
        for key, problem in here.items():
            found.setdefault(key, problem)
    return found


def fixed_splits(folder: Path) -> set[Path]:
    """The recordings of them."""
    return set(folder.glob("decode_*_splits_events.csv"))


def searched(folder: Path) -> dict[tuple[str, ...], Problem]:
    """All but the fixed splits."""
    return problems(set(folder.glob("decode_*_events.csv")) - fixed_splits(folder))


def check_grid(text: str, folder: Path) -> int:
    """Compares every cell of the grid; how many there were."""
    held = {k: p for k, p in searched(folder).items() if not k[5]}
    titles = re.findall(r"^(\d+) heads over (\d+), (\d) quer\w+, by batch and keys:", text, re.M)
    checked = 0
    for heads, kv_heads, queries in titles:
        rows = rows_below(text, f"{heads} heads over {kv_heads}, {queries} quer")
        for batch, *cells in rows:
            for keys, cell in zip((1024, 8192, 32768, 131072), cells, strict=True):
                problem = held.get((heads, kv_heads, queries, batch, str(keys), "", ""))
                if not cell:
                    assert problem is None
                    continue
                assert problem is not None
                rate = problem.gigabytes(int(batch) * keys) / problem.seconds
                assert cell == f"{rate:.0f}, {100 * problem.share:.0f} %, {problem.times:.2f}"
                checked += 1
    of_grid = [k for k in held if int(k[4]) in recorded_decode.KEYS]
    assert checked == len([k for k in of_grid if int(k[3]) in recorded_decode.BATCHES])
    return checked


def check_fixed(text: str, folder: Path) -> int:
    """Compares the losses of fixed splits; how many rows there were."""
    lost: dict[str, list[float]] = {}
    grid = searched(folder)
    for key, problem in problems(fixed_splits(folder)).items():
        for name in problem.rows:
            loss = max(0.0, problem.ratio(name, problem.chosen) - 1)
            fixed = re.fullmatch(re.escape(TILE) + r"(?:\+min_blocks_(\d+))?\+aligned", name)
            if fixed:
                lost.setdefault(f"at least {fixed[1] or 1} for each CTA", []).append(loss)
            if key in grid and name == grid[key].chosen:
                lost.setdefault("the registry's choice for each", []).append(loss)
    if not lost:
        assert "The same tile with a fixed" not in text
        return 0
    assert {row[0]: row[1:] for row in rows_below(text, "The same tile with a fixed")} == {
        name: _mean_and_worst(found) for name, found in lost.items()
    }
    return len(lost)


def _mean_and_worst(lost: Iterable[float]) -> list[str]:
    found = [100 * one for one in lost]
    over = f"{len([one for one in found if one > 3])} of {len(found)}"
    return [f"{sum(found) / len(found):.1f}", f"{max(found):.1f}", over]


def check_lengths(text: str, folder: Path) -> int:
    """Compares lengths on the device; how many rows there were."""
    held = {k: p for k, p in searched(folder).items() if k[5]}
    if not held:
        assert "Lengths that the device alone knows" not in text
        return 0
    rows = rows_below(text, "Lengths that the device alone knows")
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
        bases = of_equal.get(key[:4], {})
        base = bases[min(bases, key=lambda other: abs(other - keys))] if bases else None
        assert row[6:] == [
            f"{1e6 * problem.seconds:.1f}",
            f"{(problem.gigabytes(keys) + 4e-9 * _known(key)) / problem.seconds:.0f}",
            f"{100 * problem.share:.0f}",
            f"{problem.seconds / keys / base:.3f}" if base else "",
        ]
    assert len(rows) == len(held)
    return len(rows)


def _keys_of(row: list[str]) -> int:
    return int(row[5].replace(",", ""))


def _known(key: tuple[str, ...]) -> int:
    """Lengths and places of pages, which are read as well."""
    batch = int(key[3])
    return batch + (batch * -(-int(key[4]) // int(key[6])) if key[6] else 0)


def check_rule(text: str, folder: Path) -> int:
    """Compares what the default loses, on the grid and between; how many tables there were."""
    files = set(folder.glob("decode_*_events.csv")) - fixed_splits(folder)
    between = {path for path in files if "_between_" in path.name}
    tables = 0
    for heading, held in (
        ("Each workload of the grid was taken out", files - between),
        ("The same at lengths and batches between", between),
    ):
        if heading not in text:
            continue
        rows = {row[0]: row[1:] for row in rows_below(text, heading)}
        margins = _margins(held)
        losses = [
            (problem.raced(default, problem.chosen) - 1, margins.get(_key(problem), MARGIN))
            for key, problem in problems(held).items()
            if not key[5] and (default := _default(problem, _gpu(held)))
        ]
        # A default that is one only since stays, as another would have, for no more than that.
        lost = [one if one > margin else 0.0 for one, margin in losses]
        assert rows.get("the default") == (_mean_and_worst(lost) if lost else None)
        assert "the registry's rule" in rows
        tables += 1
    return tables


def _margins(files: Iterable[Path]) -> dict[str, float]:
    """What the default had to be beaten by, by the problem's key."""
    metas = (path.with_suffix(".meta.json") for path in files)
    told = (json.loads(meta.read_text(encoding="utf-8"))["decided"] for meta in metas)
    return {key: held["margin"] for decided in told for key, held in (decided or {}).items()}


def _key(problem: Problem) -> str:
    w = _workload(problem)
    return dataclasses.replace(w, causal=w.seq_len_q > 1, bottom_right=w.seq_len_q > 1).key


def _workload(problem: Problem) -> Workload:
    """Without its mask."""
    return Workload(problem.sizes[3], *problem.sizes[:3], problem.sizes[4], 128, DType.BF16)


def _gpu(files: Iterable[Path]) -> str:
    """The model that some recordings are of."""
    metas = [path.with_suffix(".meta.json").read_text(encoding="utf-8") for path in files]
    (name,) = {json.loads(meta)["device"]["name"] for meta in metas}
    return str(name)


def _default(problem: Problem, gpu: str) -> str:
    """The config that the default is, or was at the time, where it was measured."""
    w = _workload(problem)
    measured = {f"decode:{name}" for name in problem.rows}
    names = [key.partition(":")[2] for key in default_keys(w, limits((9, 0), gpu=gpu), measured)]
    return next((name for name in names if name in problem.rows), "")


@pytest.mark.parametrize(("name", "folder"), [("decoding", SHIPPED), ("decoding h100", H100)])
def test_what_the_page_says_of_decoding_is_what_was_recorded(name: str, folder: Path) -> None:
    text = block("docs/results.md", name)
    cells = check_grid(text, folder)
    assert (cells > 0) == bool(list(folder.glob("decode_*_events.csv")))
    check_fixed(text, folder)
    check_lengths(text, folder)
    check_rule(text, folder)


def test_what_the_readme_says_of_decoding_is_what_was_recorded() -> None:
    check_summary(block("README.md", "decoding"), SHIPPED)


def check_summary(text: str, folder: Path) -> None:
    """Compares the README's lines, one for each number of queries."""
    held = [p for k, p in searched(folder).items() if not k[5] and _on_grid(p)]
    lines = {int(line.split()[1]): line for line in text.strip().splitlines()}
    assert set(lines) == {p.sizes[2] for p in held}
    for queries, line in lines.items():
        own = [p for p in held if p.sizes[2] == queries]
        large = [100 * p.share for p in own if p.sizes[3] * p.sizes[4] * p.sizes[1] * 512 >= 260e6]
        assert f"{min(large):.0f} to {max(large):.0f} % of the speed" in line
        times = [p.times for p in own]
        assert f"{min(times):.2f} to {max(times):.2f} times as fast" in line
        assert f"{statistics.median(times):.2f} in the median of {len(times)}" in line
        assert f"slower in {sum(t < 1 for t in times)} of them" in line
        named = {"FA2": "FlashAttention 2", "FA4": "FlashAttention 4", "cuDNN": "cuDNN"}
        beside = {name for name in named if any(name in p.rows for p in own)}
        assert {name for name in named if named[name] in line} == beside


def _on_grid(problem: Problem) -> bool:
    *_, batch, keys = problem.sizes
    return keys in recorded_decode.KEYS and batch in recorded_decode.BATCHES


# Made-up recordings: 1 and 4 queries, two rounds and held-out ones.


def attempt(workload: Workload, subject: str, *times_us: float) -> Attempt:
    """Two rounds and as many held-out ones, in which it took these times."""
    seconds = tuple(us * 1e-6 for us in times_us)
    relative = tuple(us / 100 for us in times_us)
    found = Measurement(
        subject,
        workload.key,
        "events",
        tuple(s * 1.5 for s in seconds),
        relative=tuple(r * 1.5 for r in relative),
        held_out_s=seconds,
        held_out_relative=relative,
    )
    return Attempt(subject, workload.key, Outcome.OK, "", found)


def save(folder: Path, name: str, measured: dict[Workload, dict[str, float]]) -> None:
    """A recording of these times in microseconds; the first config of ours was chosen."""
    attempts, decided = [], {}
    for i, (workload, times) in enumerate(measured.items()):
        for subject, us in times.items():
            attempts.append(attempt(workload, subject, us, us * 1.01, us * (1 + i / 200)))
        first = next(s for s in times if s.startswith("decode:"))
        decided[workload.key] = Decided(0.01, chosen=first)
    meta = Meta(
        recordings.SCHEMA, H200, dataclasses.replace(ORIGIN, method="events"), decided=decided
    )
    recordings.save(folder / f"decode_{name}_events.csv", attempts, {}, meta)


def workload(batch: int, keys: int, queries: int = 1, **more: object) -> Workload:
    """64 heads over 8."""
    made = Workload(batch, 64, 8, queries, keys, 128, DType.BF16, causal=queries > 1)
    more = {"bottom_right": True, **more} if queries > 1 else more
    return dataclasses.replace(made, **more)  # type: ignore[arg-type]


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A grid of few points, fixed splits, lengths on the device, and some between."""
    folder = tmp_path / "nvidia_h200"
    grid = list(itertools.product((1, 64), (1024, 32768)))
    for queries in (1, 4):
        measured = {
            workload(batch, keys, queries): {
                "ref:read": 0.05 * batch * keys / 8,
                "ref:fa2": 0.09 * batch * keys / 8,
                **({"ref:cudnn": 0.07 * batch * keys / 8} if queries == 1 else {}),
                (CHOSEN if keys > 1024 else OTHER): 0.06 * batch * keys / 8,
                (OTHER if keys > 1024 else CHOSEN): 0.065 * batch * keys / 8,
            }
            for batch, keys in grid
        }
        save(folder, f"h64_kv8_q{queries}", measured)
    fixed = {
        workload(batch, keys): {
            f"decode:{TILE}+min_blocks_{blocks}+aligned" if blocks > 1 else CHOSEN: us
            for blocks, us in ((1, 10.0 + batch / 10), (4, 11.0), (16, 10.0 + keys / 8192))
        }
        | {OTHER: 10.5}
        for batch, keys in grid
    }
    save(folder, "h64_kv8_splits", fixed)
    # Asked for by the grid, which has OTHER at 1024 and CHOSEN at 32768.
    between = {}
    for w in (workload(1, keys) for keys in (1500, 16384)):
        default, *_ = default_keys(w, limits((9, 0)))
        between[w] = {OTHER: 700.0, default: 735.0, CHOSEN: 770.0}
    save(folder, "h64_kv8_between", between)
    for name, keys, queries, more in (
        ("equal", 5860, 1, {"cache_lengths": "equal"}),
        ("equal_short", 458, 1, {"cache_lengths": "equal"}),
        ("equal_q4", 458, 4, {"cache_lengths": "equal"}),
        ("lognormal", 32768, 1, {"cache_lengths": "lognormal-1-0"}),
        ("lognormal_short", 2560, 1, {"cache_lengths": "lognormal-1-0"}),
        ("lognormal_q4", 2560, 4, {"cache_lengths": "lognormal-1-0"}),
        ("pages", 8192, 1, {"cache_lengths": "equal", "page_size": 16}),
    ):
        taken = {"ref:read": 330.0, CHOSEN: 350.0 + queries + keys / 100, OTHER: 752.0}
        save(folder, f"h64_kv8_{name}", {workload(64, keys, queries, **more): taken})
    return folder


def test_the_section_of_made_up_recordings(made_up: Path) -> None:
    text = recorded_decode.section(Recorded(made_up))
    assert check_grid(text, made_up) == 8
    assert check_fixed(text, made_up) == 4
    assert check_lengths(text, made_up) == 7
    assert check_rule(text, made_up) == 2
    between = rows_below(text, "The same at lengths and batches between")
    assert between[0][1:] == ["5.0", "10.0", "1 of 2"]
    check_summary(recorded_decode.summary(Recorded(made_up)), made_up)


def test_what_was_not_recorded_has_no_part(made_up: Path, tmp_path: Path) -> None:
    for path in [*made_up.glob("*_splits_*"), *made_up.glob("*_pages_*")]:
        path.unlink()
    text = recorded_decode.section(Recorded(made_up))
    assert check_fixed(text, made_up) == 0
    assert check_lengths(text, made_up) == 6
    empty = Recorded(tmp_path / "none")
    assert recorded_decode.section(empty)
    assert not recorded_decode.summary(empty)
