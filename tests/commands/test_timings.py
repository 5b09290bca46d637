from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune.commands.views.row_table import gigabytes
from fa_tune.core.inputs import TRAINED
from fa_tune.core.model import Rejected, Variant
from fa_tune.tune.results import VerifyReport
from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put, Stub


@pytest.fixture
def bench(stub: Put) -> Stub:
    return stub("fa_tune.tune.single.bench", fakes.profile_result())


def _cells(out: str, kernel: str) -> list[str]:
    (line,) = [x for x in out.splitlines() if f"| {kernel} " in x]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_bench_shows_the_five_figures_of_the_samples(console: Console, bench: Stub) -> None:
    given = ("--kernels", "prog", "--runs", "3", "--regime", "sustained", "--record", "here")
    done = console("bench", *given, "--wide")
    assert done.status == 0
    assert (bench.options[0].measure.regime, bench.options[0].record) == ("sustained", Path("here"))
    assert (bench.options[0].kernels, bench.options[0].measure.runs) == ("prog", 3)
    assert bench.calls[0][2] == (TRAINED,)
    samples = (5.0, 5.1, 4.9)
    sd = f"{statistics.stdev(samples):.4f}"
    assert _cells(done.out, fakes.FAST)[1:7] == ["5.0000", "5.0000", "4.9000", "5.1000", sd, "3"]
    assert _cells(done.out, fakes.FAST)[7] == "439.8"  # 4 s² d, 16 x 16 heads, over 5 ms
    assert _cells(done.out, fakes.BROKEN)[1:10] == [""] * 9
    assert _cells(done.out, fakes.BROKEN)[10:] == ["crashed", "the GPU reported an illegal address"]
    order = [done.out.index(name) for name in ("cuDNN", "FA2", fakes.FAST, fakes.SLOW)]
    assert order == sorted(order)
    assert done.out.rstrip().endswith(f"Measurements: {fakes.WHOSE}.")


def test_bench_for_programs(console: Console, bench: Stub) -> None:
    timings = console("bench", "--json").json["timings"]
    fast = next(t for t in timings if t["kernel"] == fakes.FAST)
    assert fast["samples_s"] == pytest.approx([0.005, 0.0051, 0.0049])
    assert fast["sd_s"] == pytest.approx(1e-4)
    crashed = next(t for t in timings if t["outcome"] == "crashed")
    assert crashed["mean_s"] is None
    rows = console("bench", "--csv", "-").rows
    assert len(rows) == 5
    found = fakes.attempt(fakes.key(fakes.FAST), (5.0,)), fakes.attempt("ref:fa2", (5.0, 7.0))
    bench.result = fakes.profile_result(found)
    assert _cells(console("bench", "--wide").out, fakes.FAST)[5] == ""
    deviations = [t["sd_s"] for t in console("bench", "--json").json["timings"]]
    assert deviations == [None, pytest.approx(2**0.5 * 1e-3)]
    assert gigabytes(4.89e12) == "4890"


@pytest.fixture
def run(stub: Put) -> Stub:
    return stub("fa_tune.tune.single.run", (fakes.profile_result(), fakes.verify_report()))


def test_run_verifies_then_times(console: Console, run: Stub) -> None:
    done = console("run", fakes.FAST, "-n", "7", "--seq-lens", "512", "--wide")
    assert done.status == 0
    config, options, n, _ = run.calls[0]
    assert (config, n, options.workloads.seq_lens) == (fakes.FAST, 7, (512,))
    assert options.kernels == fakes.FAST
    assert done.out.index("1 of 1 right.") < done.out.index("mean (ms)")
    document = console("run", fakes.FAST, "--json").json
    assert document["schema"] == "fa-tune-run-1"
    assert document["verdicts"][0]["correct"]
    assert len(document["timings"]) == 5


def test_run_of_a_wrong_config_is_status_4_without_times(console: Console, run: Stub) -> None:
    wrong = fakes.verify_report(**{fakes.key(fakes.FAST): fakes.verdict(error=1.0)})
    run.result = (replace(fakes.profile_result(), attempts=(), source="not timed"), wrong)
    done = console("run", fakes.FAST)
    assert done.status == 4
    assert "✗" in done.out
    assert "mean (ms)" not in done.out
    assert done.lines == ["error: 0 of 1 right, 1 wrong"]


def test_run_of_what_cannot_run_says_why(console: Console, run: Stub) -> None:
    rejected = ((Variant("sm80", fakes.FAST), Rejected("smem_fits", "needs 246 KiB")),)
    run.result = (replace(fakes.profile_result(), attempts=()), VerifyReport({}, (), rejected))
    done = console("run", fakes.FAST)
    assert done.status == 4
    assert "smem_fits: needs 246 KiB" in done.err


def test_a_table_for_each_kind_of_inputs(console: Console, bench: Stub) -> None:
    measured = [a for a in fakes.attempts() if a.measurement is not None]
    bench.result = fakes.profile_result(
        [
            replace(a, measurement=replace(a.measurement, inputs=inputs))
            for a in measured
            if a.measurement
            for inputs in ("trained", "sink", "peaked:3")
        ]
    )
    out = console("bench", "--inputs", "trained,sink,peaked:3").out
    assert list(map(str, bench.calls[0][2])) == ["trained", "sink", "peaked:3"]
    titles = [line for line in out.splitlines() if line.endswith(" inputs; ncu")]
    assert [t.rpartition(", ")[2].removesuffix(" inputs; ncu") for t in titles] == [
        *("trained", "sink", "peaked:3")
    ]
    told = console("bench", "--json").json["timings"]
    rows = console("bench", "--csv", "-").rows
    for shown in (told, rows):
        assert {row["inputs"] for row in shown} == {"trained", "sink", "peaked:3"}
