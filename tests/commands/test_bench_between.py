"""`fa-tune bench-between`, from the outside."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.commands.console import Console
from tests.lab.test_between import SAFE, A, B, decode, recorded


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return recorded(
        tmp_path / "profiles",
        {
            decode(1024): {A: 10.0, B: 12.0, SAFE: 10.2},
            decode(4096): {A: 22.0, B: 24.0, SAFE: 20.0},
            decode(16384): {A: 72.0, B: 60.0, SAFE: 61.2},
        },
    )


def test_the_command_says_what_each_loses(folder: Path, console: Console) -> None:
    done = console("bench-between", "--recordings", str(folder))
    assert done.status == 0, done.err
    assert all(len(line) <= 80 for line in done.out.splitlines())
    assert "more than 3 % on 0 of 3" in " ".join(done.out.split())
    told = console("bench-between", "--recordings", str(folder), "--json").json
    assert [loss["workload"] for loss in told["losses"]] == [
        decode(keys).key for keys in (1024, 4096, 16384)
    ]
    assert told["losses"][1]["rule"] == pytest.approx(0.0)
    rows = [line.split("|")[1:-1] for line in done.out.splitlines() if " s1x" in line]
    for row, loss in zip(rows, told["losses"], strict=True):
        shown = [loss[name] for name in ("rule", "nearest", "default", "single")]
        assert [float(cell) for cell in row[1:] if cell.strip()] == pytest.approx(
            [100 * lost for lost in shown if lost is not None], abs=0.05
        )


def test_workloads_of_two_gpus_are_in_tables_of_their_own(folder: Path, console: Console) -> None:
    (first,) = folder.iterdir()
    second = shutil.copytree(first, folder / "another")
    for meta in second.glob("*.meta.json"):
        meta.write_text(meta.read_text().replace("H200", "H100"))
    lines = console("bench-between", "--recordings", str(folder)).out.splitlines()
    titles = [line for line in lines if line.endswith(("; events", "; ncu"))]
    assert len(titles) == 2
    begin, end = (lines.index(title) for title in titles)
    tables = lines[begin:end], lines[end:]
    for table in tables:
        for keys in (1024, 4096, 16384):
            assert sum(f"s1x{keys} " in line for line in table) == 1
