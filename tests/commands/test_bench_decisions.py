"""`fa-tune bench-decisions`, from the outside, on tunings that never were."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from fa_tune.core import devices
from fa_tune.lab import repeatability
from fa_tune.lab.repeatability import RecordedTunings
from tests.commands.console import Console
from tests.commands.fakes import H200, Put
from tests.lab.test_repeatability import CROWDED, tuning

pytestmark = pytest.mark.usefixtures("wide_terminal")

WHOSE = "measured on this machine's NVIDIA H200"


@pytest.fixture
def ten(tmp_path: Path) -> Path:
    path = tmp_path / "ten.json"
    made = tuple(tuning(CROWDED, seed, shift=0.0005) for seed in range(10))
    repeatability.save(path, RecordedTunings(made, WHOSE))
    return path


def test_recorded_tunings_are_decided_again(console: Console, ten: Path) -> None:
    done = console("bench-decisions", "--from", str(ten))
    assert done.status == 0, done.err
    (row,) = [line for line in done.out.splitlines() if line.startswith("| w ")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["w", "10", "0"]
    assert int(cells[3]) > 0
    assert int(cells[4]) > 0
    assert "w: 10 times first. Lowest medians were of" in done.out
    assert "The same choice in all tunings for 1 of 1 workloads." in done.out
    assert "Slower than the default by more than 1 %: 0 of 1." in done.out
    assert done.out.splitlines()[-1] == f"Measurements: {WHOSE}; decided again."


@pytest.mark.long
def test_tunings_can_be_simulated(console: Console, ten: Path) -> None:
    simulate = ("bench-decisions", "--from", str(ten), "--simulate", "--tunings")
    done = console(*simulate, "200", "--json")
    document = done.json
    (one,) = document["workloads"]
    assert one["tunings"] == 200
    assert one["flips"] <= 2 < one["flips_lowest_median"]
    assert "simulated from 10 tunings" in document["whose"]
    few = console(*simulate, "10", "--json").out
    assert console(*simulate, "10", "--json").out == few
    assert console(*simulate, "10", "--json", "--seed", "5").out != few


def test_csv_has_a_row_for_each_tuning(console: Console, ten: Path, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert console("bench-decisions", "--from", str(ten), "--csv", str(path), "--json").status == 0
    rows = list(csv.DictReader(path.open()))
    assert [r["seed"] for r in rows] == [str(i) for i in range(10)]
    assert {r["chosen"] for r in rows} == {"sm80:first"}
    assert all(float(r["to_default"]) < 0.95 for r in rows)
    assert {r["confirmed"] for r in rows} == {""}


def test_on_a_gpu_what_was_asked_for_is_tuned(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    stub: Put,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(devices, "find_device", lambda index=0: H200)
    tuned = RecordedTunings((tuning(CROWDED, 0), tuning(CROWDED, 1)), WHOSE)
    tune = stub("fa_tune.lab.repeat.tune_many", tuned)
    path = tmp_path / "t.json"
    done = console(
        *("bench-decisions", "--seq-lens", "512", "--dtype", "bf16", "--tunings", "3"),
        *("--profiler", "events", "--no-confirm", "--to", str(path), "--family", "sm80"),
    )
    assert done.status == 0, done.err
    ((options, n, _),) = tune.calls
    assert (n, tune.named, options.confirm) == (3, [{"to": path}], False)
    assert options.workloads.seq_lens == (512,)
    assert options.measure.profiler == "events"
    assert options.families == ("sm80",)
