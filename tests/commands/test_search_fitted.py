"""What a search prints has one meaning of fastest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fa_tune import families
from fa_tune.commands.views import search_table
from fa_tune.commands.views.search import workload_rows
from fa_tune.core.errors import FaTuneError
from fa_tune.core.model import Variant
from fa_tune.report.fitted import Legend
from fa_tune.search.decide import decide
from fa_tune.store.registry import file as registry_file
from fa_tune.tune.results import WorkloadResult
from tests.commands import fakes
from tests.commands.console import Console

SM90 = "sm90:sm90(FP16, 128, 128x128): stages_2+q_stages_2+pingpong+overlap+stale_max+dynamic"
ROW = re.compile(r"^(?P<mark>[*= ]) {2}(?P<name>#\d+|FA2|cuDNN) +(?P<rest>.*)$")


@pytest.mark.usefixtures("known_kernels")
def test_rows_mark_and_registry_are_of_one_ratio(console: Console, tmp_path: Path) -> None:
    registry = tmp_path / "registry.json"
    done = console("search", "--seq-lens", "4096", "--registry", str(registry))
    tables = [t for t in done.out.split("\n\n") if " x  " in t and t.startswith("seq_len")]
    entries = registry_file.load(registry).entries
    assert len(tables) == len(entries)
    legend = _legend(done.out)
    for table in tables:
        rows = [m for line in table.splitlines() if (m := ROW.match(line))]
        ours = [m for m in rows if m["name"].startswith("#")]
        ratios = [float(re.findall(r"\d+\.\d{3}", m["rest"])[-1]) for m in ours]
        assert ratios == sorted(ratios)
        (chosen,) = [m for m in ours if m["mark"] == "*"]
        assert re.search(r"\b1\.000\b", chosen["rest"])
        dtype = "BF16" if "BF16" in table else "FP16"
        length = int(table.split(",")[0].removeprefix("seq_len "))
        (entry,) = [
            e for e in entries if (e.workload.seq_len_q, e.workload.dtype.name) == (length, dtype)
        ]
        assert legend[chosen["name"]] == families.parse(entry.chosen.config)
        for name, ratio in entry.ratio_to_references.items():
            label = {"fa2": "FA2", "cudnn": "cuDNN"}[name]
            (row,) = [m for m in rows if m["name"] == label]
            assert f"{1 / ratio.value:.3f}" in row["rest"]


def _legend(out: str) -> dict[str, object]:
    """The configs of a legend, put together again."""
    shared = ""
    found: dict[str, object] = {}
    text = re.sub(r"\n {6}", "", out)
    for line in text.splitlines():
        if m := re.match(r"sm\d+, all with (.*)", line):
            shared = m[1]
        elif m := re.match(r" {2}(#\d+) (.*?\)):? ?(\+ )?(.*)", line):
            words = "+".join(part for part in (shared if m[3] else "", m[4]) if part)
            words = words or shared
            try:
                found[m[1]] = families.parse(f"{m[2]}: {words}")
            except FaTuneError:
                found[m[1]] = None
    return found


def test_a_config_that_another_begins_with_keeps_its_number() -> None:
    legend = Legend()
    subjects = [SM90, f"{SM90}+longest_first"]
    text = " and ".join(Variant.from_key(s).config for s in subjects)
    assert re.fullmatch(r"#\d and #\d", legend.numbered(text, subjects))
    assert legend.number(subjects[0]) != legend.number(subjects[1])


def lines_of(fast: float, slow: float, legend: Legend, limit: int) -> list[str]:
    """The table of two configs that take so long, of which the slow one is the default."""
    subjects = [fakes.key(c) for c in (fakes.FAST, fakes.SLOW)]
    attempts = tuple(
        fakes.attempt(s, (t, t, t)) for s, t in zip(subjects, (fast, slow), strict=True)
    )
    decision = decide([a.measurement for a in attempts if a.measurement], subjects[1])
    found = WorkloadResult(fakes.workload(), attempts, decision)
    rows = workload_rows(fakes.search_result([found]), found)
    return search_table.table_lines(found, rows, legend, limit, 80)


def test_the_chosen_one_and_the_default_are_shown_whatever_the_limit() -> None:
    lines = lines_of(5.0, 9.0, Legend(), 1)
    assert any(line.startswith("*") for line in lines)
    assert any("default" in line for line in lines)


def test_the_fastest_is_tied_only_with_something_else() -> None:
    fast, slow = fakes.key(fakes.FAST), fakes.key(fakes.SLOW)

    def marks(one: float, other: float) -> dict[str, str]:
        legend = Legend()
        lines = lines_of(one, other, legend, 5)
        return {s: line[0] for s in (fast, slow) for line in lines if legend.number(s) in line}

    assert marks(0.998, 1.0) == {fast: "=", slow: "*"}, "the default, tied with the fastest"
    assert marks(0.992, 1.0) == {fast: " ", slow: "*"}, "within the margin, and no tie"
    assert marks(0.9, 1.0) == {fast: "*", slow: " "}
