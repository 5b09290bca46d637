"""`fa-tune bench-search` and `fa-tune spaces`, from the outside."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fa_tune.core.model import DeviceInfo, Outcome
from fa_tune.lab.space_table import SUFFIX, SpaceMeta, SpaceRow, load, recorded, save
from tests.commands.console import Console

pytestmark = pytest.mark.usefixtures("wide_terminal")

WORKLOADS = tuple(f"b16_h16_kv16_q{s}_k{s}_d128_fp16_full" for s in (512, 4096))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recorded space of 24 configs on two workloads; v7 is the default, v20 the best."""
    rows = [
        SpaceRow(f"v{i}", workload, Outcome.CRASHED if i == 3 else Outcome.OK,
            {"n": i % 12, "flag": i >= 12}, () if i == 3 else (1e-3 * (1 + abs(i - 20) / 20),))
        for workload in WORKLOADS
        for i in range(24)
    ]  # fmt: skip
    meta = SpaceMeta(
        {"n": "int", "flag": "bool"},
        DeviceInfo("NVIDIA H200", (9, 0), "580"),
        defaults={WORKLOADS[0]: "v7"},
    )
    save(tmp_path / "kept" / "deep" / f"wide{SUFFIX}", rows, meta)
    return tmp_path / "kept"


def test_the_table_has_random_search_and_every_strategy(console: Console, folder: Path) -> None:
    done = console("bench-search", str(folder), "--seeds", "3", "--limit", "24", "-j", "1")
    assert done.status == 0, done.err
    first, second = done.out.split("\n\n")[:2]
    assert first.startswith(
        f"wide {WORKLOADS[0]}: 24 configs, 23 ran, the best takes 1.000 ms; the"
    )
    assert "default, measured first, reaches 60.6 % of it" in first
    assert "default" not in second
    for name in ("random (calculated)", "learned"):
        assert f"| {name}" in first
    assert "of 3 runs" in done.out
    arguments = ["bench-search", str(folder), "--seeds", "1", "--strategy", "none", "-j", "1"]
    assert "the default" in console(*arguments).out
    assert "the default" not in console(*arguments, "--default", "hidden").out


def test_csv_and_json_hold_the_same_numbers(console: Console, folder: Path, tmp_path: Path) -> None:
    arguments = ["bench-search", str(folder), "--seeds", "2", "--strategy", "random", "-j", "1"]
    arguments += ["--workload", WORKLOADS[1]]
    table = console(*arguments, "--csv", "-").rows
    document = console(*arguments, "--json", "--csv", str(tmp_path / "both.csv")).json
    assert [*csv.DictReader((tmp_path / "both.csv").open())] == table
    (space,) = document["spaces"]
    assert [s["strategy"] for s in space["scores"]] == ["random (calculated)", "random"]
    assert [r["strategy"] for r in table] == ["random (calculated)", "random"]
    for row, one in zip(table, space["scores"], strict=True):
        for level in ("95%", "98%", "99%"):
            assert int(row[f"{level} median"]) == one["needed"][level]["median"]
            assert int(row[f"{level} p90"]) == one["needed"][level]["p90"]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_the_plot_is_a_picture_and_always_the_same(
    console: Console, folder: Path, tmp_path: Path, suffix: str
) -> None:
    pictures = []
    for name in ("a", "b"):
        path = tmp_path / f"{name}.{suffix}"
        done = console(
            *("bench-search", str(folder), "--seeds", "1", "-j", "1", "--limit", "9"),
            *("--strategy", "random", "--plot", str(path)),
        )
        assert done.status == 0, done.err
        pictures.append(path.read_bytes())
    assert pictures[0] == pictures[1]
    assert pictures[0][:4] in (b"<svg", b"\x89PNG")


def test_external_strategies_have_a_number_of_runs_of_their_own(
    console: Console, folder: Path
) -> None:
    search = ("bench-search", str(folder), "--strategy", "none", "--json")
    done = console(*search, "--external-seeds", "2")
    assert done.status == 0, done.err
    assert done.json["plan"]["external_seeds"] == 2
    none = console(*search, "--workload", "b1_h1_kv1_q8_k8_d64_bf16_causal")
    assert (none.status, none.lines[-1][:38]) == (4, "error: no recorded space has b1_h1_kv1")


def test_spaces_are_shown(console: Console, folder: Path) -> None:
    done = console("spaces", "show", str(folder))
    assert done.status == 0
    title, _, *rows = done.out.splitlines()
    assert title == "wide; NVIDIA H200"
    known = recorded(load(next(folder.rglob(f"*{SUFFIX}"))))
    near = [
        [str(sum(t is not None and t * percent <= 100 * space.best_s for t in space.times_s))
         for percent in (95, 98, 99)]
        for space in known
    ]  # fmt: skip
    assert [row.split() for row in rows if row] == [
        [key, "23", "of", "24", "1.000", *own] for key, own in zip(WORKLOADS, near, strict=True)
    ]


def test_spaces_are_exported_and_imported(console: Console, folder: Path, tmp_path: Path) -> None:
    done = console("spaces", "export", str(folder), "--to", str(tmp_path / "out"))
    assert done.status == 0
    results = [line for line in done.out.splitlines() if line.endswith(".t4.json")]
    assert len(results) == 2
    target = tmp_path / f"again{SUFFIX}"
    done = console("spaces", "import", results[0], "--to", str(target), "--workload", WORKLOADS[0])
    assert done.status == 0, done.err
    assert f"24 configs written to {target}" in done.out
    assert WORKLOADS[0] in console("spaces", "show", str(target)).out
