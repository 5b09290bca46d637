"""What search, report, profile, bench and the registry print fits a terminal, each told apart."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from fa_tune.commands.shared.fitted_table import fitted_table
from fa_tune.core.model import Outcome, Quantity
from fa_tune.core.paths import profiles_dir
from fa_tune.lab import default_check
from fa_tune.profile.ncu.metrics import INSTRUCTIONS, L2_HIT_RATE, TENSOR_PIPE
from fa_tune.report.fitted import fitted
from fa_tune.report.load import load_report_source
from fa_tune.report.wrap import folded
from fa_tune.store.table.rows import best, grouped
from fa_tune.tune.results import ProfileResult
from tests.commands import fakes
from tests.commands.console import Console
from tests.project_files import ROOT

H200 = profiles_dir() / "nvidia_h200"
RAW = ROOT / "tests/report/data/raw_h200_seq4096.csv"
CONFIG = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_2_2_2_tiles+buffer"
OTHER = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+opt_softmax"


def _counted() -> ProfileResult:
    counters = {TENSOR_PIPE: Quantity(61.26, "%"), INSTRUCTIONS: Quantity(1.2e9, "inst")}
    hit = {L2_HIT_RATE: Quantity(91.0, "%")}
    found = (
        fakes.attempt(fakes.key(fakes.FAST), (5.0, 5.1, 4.9), counters=counters),
        fakes.attempt(fakes.key(fakes.SLOW), (9.0, 9.1, 8.9), counters=hit),
        fakes.attempt("ref:fa2", (6.0, 6.1, 6.2), counters=counters),
        *(a for a in fakes.attempts() if a.outcome is Outcome.CRASHED),
    )
    return fakes.profile_result(found)


@pytest.fixture
def compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recordings are compared once, however often they are shown."""
    compare = "fa_tune.commands.registry.compare_recordings"
    monkeypatch.setattr(compare, cache(default_check.compare_recordings))


@pytest.mark.usefixtures("compared_once", "known_kernels")
@pytest.mark.parametrize(
    "arguments",
    [
        ("report", str(RAW)),
        ("report", str(profiles_dir() / "autotune.csv"), "--sort", "cycles"),
        ("profile", CONFIG, OTHER, "--seq-lens", "4096", "--metrics", "explain"),
        ("bench",),
        ("registry", "check", "--recordings", str(H200), "--method", "ncu"),
        ("spaces", "show"),
        ("search", "--seq-lens", "1024,4096"),
    ],
    ids=("ncu", "csv", "profile", "bench", "check", "spaces", "search"),
)
def test_nothing_is_wider_than_the_terminal(
    console: Console,
    monkeypatch: pytest.MonkeyPatch,
    stub: fakes.Put,
    tmp_path: Path,
    arguments: tuple[str, ...],
) -> None:
    stub("fa_tune.tune.single.bench", _counted())
    for width in (60, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        done = console(*arguments)
        assert done.status == 0, done.err
        long = [line for line in done.out.splitlines() if len(line) > width]
        assert all(str(tmp_path) in line for line in long)


@pytest.mark.usefixtures("known_kernels")
def test_a_registry_fits_and_names_its_configs(console: Console, tmp_path: Path) -> None:
    kept = tmp_path / "r.json"
    search = ("search", "--seq-lens", "1024,4096", "--registry", str(kept))
    assert console(*search).status == 0
    out = console("registry", "show", "--registry", str(kept)).out
    assert all(len(line) <= 80 for line in out.splitlines() if str(kept) not in line)
    assert not re.search(r"^.*async\+.*stays", out, re.MULTILINE)
    numbers = set(re.findall(r"#\d+", out))
    assert numbers == set(re.findall(r"^  (#\d+) ", out, re.MULTILINE)), "each is in the legend"


def test_the_fastest_is_marked_in_every_table(console: Console) -> None:
    out = console("report", str(profiles_dir() / "autotune.csv"), "--limit", "1").out
    rows = load_report_source(profiles_dir() / "autotune.csv")
    marked = re.findall(r"^\* {2}#\d+ +(\S+ \S+) +1\.000\b", out, re.MULTILINE)
    assert len(marked) == len(grouped(rows))
    assert all(best(members) for members in grouped(rows).values())


def test_numbers_are_the_same_in_table_counters_and_legend(
    console: Console, stub: fakes.Put
) -> None:
    stub("fa_tune.tune.single.profile", _counted())
    out = console("profile", fakes.FAST, "--metrics", "explain").out
    (fast,) = re.findall(r"^  (#\d+) .*" + re.escape(fakes.FAST[-12:]), out, re.MULTILINE)
    assert re.search(rf"^\*  {fast} ", out, re.MULTILINE)
    counters = out[out.index("Counters at") :].splitlines()
    names = re.split(r" {2,}", counters[1])
    (line,) = [line for line in counters if line.startswith("tensor pipe busy")]
    assert re.split(r" {2,}", line)[names.index(fast)] == "61.3 %"


def test_spare_columns_go_first_and_rows_are_broken_between_columns() -> None:
    headings, rows = ("name", "a", "b", "none"), [("x", "1234567890", "22", "")]
    assert fitted(headings, rows, 80)[0].split() == ["name", "a", "b"]
    assert fitted(headings, rows, 12, spare=("a", "b"))[0].split() == ["name", "b"]
    headings = ("name", "time", "/ default")
    rows = [("long name of one", "9 ms", "the default"), ("x", "10 ms", "0.97 (0.96 to 0.98)")]
    assert fitted(headings, rows, 30, left=("name",), fold=True) == [
        "name               time",
        "                / default",
        "long name of one   9 ms",
        "              the default",
        "x                 10 ms",
        "      0.97 (0.96 to 0.98)",
    ]
    one = fitted(headings, rows, 20, left=("name",), fold=True)
    assert len(one) == 3, "no line is wide enough for the last column"


def test_a_table_that_fits_is_drawn_and_a_wider_one_keeps_every_cell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    headings = ("config", "Regs", "problem")
    rows = [[CONFIG, "168", ""], [OTHER, "64", "a b " * 30]]
    monkeypatch.setenv("COLUMNS", "300")
    assert fitted_table(headings, rows, {"config", "problem"}, configs="config").startswith("+--")
    monkeypatch.setenv("COLUMNS", "80")
    text = fitted_table(headings, rows, {"config", "problem"}, configs="config")
    assert max(map(len, text.splitlines())) <= 80
    assert [text.split().count(word) for word in ("a", "b", "168", "#2")] == [30, 30, 1, 2]
    for word in (*CONFIG.split(": ")[1].split("+"), *OTHER.split(": ")[1].split("+")):
        assert word in text
    monkeypatch.setenv("COLUMNS", "40")
    same, headings = ("alike " * 5).strip(), ("what all have", "what tells apart")
    apart = [[f"{same}\nbelow", "left " * 8], [f"{same}\nbelow", "right " * 8]]
    text = fitted_table(headings, apart, set())
    counts = [text.split().count(word) for word in ("alike", "below", "left", "right")]
    assert counts == [5, 1, 8, 8]
    assert max(map(len, text.splitlines())) <= 40
    equal = fitted_table(headings, [[same, same]] * 3, set())
    assert equal.split().count("alike") == 3 * 2 * 5


@pytest.mark.parametrize("width", [40, 80])
def test_a_folded_line_is_the_whole_line(width: int) -> None:
    text = f"{CONFIG}: some reason of many words that goes on {OTHER}"
    lines = folded(text, width, indent="    ").splitlines()
    assert max(map(len, lines)) <= width
    assert "".join("".join(lines).split()) == "".join(text.split())
