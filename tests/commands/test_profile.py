from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.model import Quantity
from fa_tune.core.paths import profiles_dir
from fa_tune.profile.ncu.metrics import INSTRUCTIONS, L2_HIT_RATE, TENSOR_PIPE
from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put, Stub

COUNTERS = {
    TENSOR_PIPE: Quantity(61.26, "%"),
    INSTRUCTIONS: Quantity(1_234_567.0, "inst"),
    "vendor__unknown.sum": Quantity(0.0, ""),
}


@pytest.fixture
def profile(stub: Put) -> Stub:
    found = (
        fakes.attempt(fakes.key(fakes.FAST), (5.0,), counters=COUNTERS),
        fakes.attempt(fakes.key(fakes.SLOW), (9.0,), counters={L2_HIT_RATE: Quantity(91, "%")}),
        fakes.attempt("ref:fa2", (6.0,), counters={TENSOR_PIPE: Quantity(50.0, "%")}),
    )
    return stub("fa_tune.tune.single.profile", fakes.profile_result(found))


def test_configs_and_options_are_handed_on(console: Console, profile: Stub) -> None:
    done = console(
        *("profile", fakes.FAST, fakes.SLOW, "--seq-lens", "512,1024", "--metrics", "full"),
        *("--export", "kept.ncu-rep", "--ref", "fa2", "--batch", "2", "--wide"),
    )
    assert done.status == 0, done.err
    ((configs, options, _),) = profile.calls
    assert configs == (fakes.FAST, fakes.SLOW)
    assert options.workloads.seq_lens == (512, 1024)
    assert (options.measure.metrics, options.measure.references) == ("full", ("fa2",))
    assert profile.named == [{"export": Path("kept.ncu-rep")}]
    assert done.lines[0] == fakes.WHOSE
    assert done.out.splitlines()[-1] == f"Measurements: {fakes.WHOSE}."
    assert done.lines[-1] == "warning: no report was written to kept.ncu-rep"


def test_a_kept_report_is_named(console: Console, profile: Stub, tmp_path: Path) -> None:
    profile.result = replace(profile.result, export=tmp_path / "kept.ncu-rep")
    done = console("profile", fakes.FAST, "--export", "kept.ncu-rep")
    assert f"Report kept in {tmp_path}/kept.ncu-rep." in done.out
    assert "warning" not in done.err


def test_counters_stand_side_by_side(console: Console, profile: Stub) -> None:
    out = console("profile", fakes.FAST, fakes.SLOW, "--metrics", "explain", "--wide").out
    assert "Counters at seq_len 4096, d_head 128, FP16" in out
    rows = {
        cells[0]: cells[1:]
        for line in out.splitlines()
        if len(cells := re.split(r"  +", line.strip())) == 4
    }
    assert rows["metric"] == ["#1", "#2", "FA2"]
    assert rows["tensor pipe busy"] == ["61.3 %", "–", "50.0 %"]
    assert rows["instructions executed"] == ["1,234,567 inst", "–", "–"]
    assert rows["L2 hit rate"] == ["–", "91.0 %", "–"]
    assert rows["vendor__unknown.sum"] == ["0", "–", "–"]
    legend = out.partition("sm80, all with")[2]
    assert [line for line in legend.splitlines() if line.startswith(("  #1 ", "  #2 "))]


def test_csv_and_json_have_samples_and_counters(
    console: Console, profile: Stub, tmp_path: Path
) -> None:
    done = console("profile", fakes.FAST, "--csv", "t.csv", "--wide")
    assert "Dur (ms)" in done.out
    assert len((tmp_path / "t.csv").read_text().splitlines()) == 4
    done = console("profile", fakes.FAST, "--json")
    document: dict[str, Any] = done.json
    first = document["measurements"][0]
    assert first["samples_s"] == [0.005]
    assert first["counters"][TENSOR_PIPE] == {"value": 61.26, "unit": "%"}
    assert [row["kernel"] for row in document["rows"]] == ["FA2", fakes.FAST, fakes.SLOW]


def test_same_label_of_two_metrics_is_told_apart(console: Console, profile: Stub) -> None:
    other = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
    counters = {TENSOR_PIPE: Quantity(1, "%"), other: Quantity(2, "%")}
    found = (fakes.attempt(fakes.key(fakes.FAST), (5.0,), counters=counters),)
    profile.result = fakes.profile_result(found)
    out = console("profile", fakes.FAST, "--metrics", "full", "--wide").out
    assert f"\n{other} " in out
    assert f"\n{TENSOR_PIPE} " in out


def test_counters_recorded_apart_from_the_times_are_found(console: Console, profile: Stub) -> None:
    """What `explain` knows of a kernel, `profile --metrics explain` shows too."""
    names = fakes.SLOW, fakes.SLOW.replace("async+", "async+swizzled+")
    profile.result = fakes.profile_result([fakes.attempt(fakes.key(n), (9.0,)) for n in names])
    shown = console("profile", "--metrics", "explain", "--json", *names).json
    known = json.loads((profiles_dir() / "nvidia_h200/ladder_explain.json").read_text())
    counters = {m["subject"]: m["counters"] for m in known["measurements"]}
    assert [m["counters"] for m in shown["measurements"]] == [
        counters[fakes.key(name)] for name in names
    ]
    assert shown["whose"].endswith("; counters from nvidia_h200/ladder_explain.json")
