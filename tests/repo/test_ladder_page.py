"""The pages that quote the recordings are up to date, and what the ladder's sentences say holds in
the files of the recordings."""

from __future__ import annotations

import csv
import json
import re
import statistics
from functools import cache

import pytest

import ladder_page
from tests.project_files import ROOT

FOLDER = ROOT / "profiles" / "nvidia_h200"
WORKLOAD = "b16_h16_kv16_q4096_k4096_d128_fp16_full"
CYCLES = "sm__cycles_elapsed.max"
STALL = re.compile(r"_issue_stalled_(\w+)_per_issue")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
# A decimal number, or any number with a unit; versions and numbers inside words are none.
MEASURED = re.compile(
    r"(?<![\w.,])[+−-]?"
    r"(?:\d[\d,]*\.\d+(?![\w.]*\.\d)|\d[\d,]*(?= ?(?:%|ms\b|times\b|million|GHz|TFLOP)))"
)


def _read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [*ladder_page.TABLES, *ladder_page.PICTURES])
def test_page_is_up_to_date(page: str) -> None:
    assert ladder_page.made(page) == _read(page), "run: python tools/pages/ladder_page.py"


@pytest.mark.parametrize("page", ladder_page.TABLES)
def test_no_comment_is_misspelt(page: str) -> None:
    """A comment right behind a word ties a figure; one that is not understood would be skipped."""
    tied = re.findall(r"\S<!-- [^>]*-->", _read(page))
    assert len(tied) == len(ladder_page.FIGURE.findall(_read(page)))


def test_every_figure_on_the_ladder_is_tied_to_the_recordings() -> None:
    text = re.sub(r"<!-- (\w+) -->.*?<!-- /\1 -->", "", _read("docs/ladder.md"), flags=re.DOTALL)
    text = re.sub(r"`[^`]*`", "", FENCE.sub("", text))
    assert MEASURED.findall(ladder_page.FIGURE.sub("", text)) == []


def test_wrong_figures_and_tables_are_put_right() -> None:
    page = "docs/ladder.md"
    text = _read(page)
    wrong = re.sub(r"\S+(?=<!-- ncu r2:r3 -->)", "+99.9", text)
    wrong = wrong.replace("| 2 | swizzle |", "| 2 | magic |")
    assert wrong.count("+99.9") == 1
    assert "magic" in wrong
    assert ladder_page.filled(wrong, page) == text


@cache
def explained() -> dict[str, dict[str, float]]:
    """Counters and the time in ms by step (1 to 7), `best`, `FA2` and `cuDNN`, in the order of the
    ladder's table."""
    names = dict(re.findall(r"^\| (\w+) \| [^|]+ \| `([^`]+)` \|", _read("docs/ladder.md"), re.M))
    subjects = {f"sm80:{config}": name for name, config in names.items()}
    subjects |= {"ref:fa2": "FA2", "ref:cudnn": "cuDNN"}
    found = {}
    for one in json.loads(_read("profiles/nvidia_h200/ladder_explain.json"))["measurements"]:
        if one["workload"] == WORKLOAD:
            counters = {name: counter["value"] for name, counter in one["counters"].items()}
            counters["ms"] = 1e3 * statistics.median(one["samples_s"])
            found[subjects[one["subject"]]] = counters
    return found


@cache
def ranked(method: str) -> dict[str, list[float]]:
    """Samples in ms of the ladder's own run by config or library."""
    with (FOLDER / f"prog_{method}.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["seq_len"] == "4096"]
    wanted = {"dtype": "FP16", "causal": "false", "d_head": "128"}
    return {
        row["Kernel Name"]: [float(x) for x in row["samples (ms)"].split()]
        for row in rows
        if all(row[key] == value for key, value in wanted.items())
    }


def steps(method: str) -> list[list[float]]:
    """Samples of steps 1 to 7."""
    config = re.compile(r"^\| \d \| [^|]+ \| `([^`]+)` \|", re.MULTILINE)
    return [ranked(method)[name] for name in config.findall(_read("docs/ladder.md"))]


def stalls(name: str) -> dict[str, float]:
    """All stalls by reason; to be selected is none."""
    found = {r[1]: value for key, value in explained()[name].items() if (r := STALL.search(key))}
    return {reason: value for reason, value in found.items() if reason != "selected"}


def test_the_order_that_the_prose_states() -> None:
    """Sentences do not follow new recordings by themselves; these are what the page rests on."""
    medians = [statistics.median(samples) for samples in steps("ncu")]
    assert sorted(range(1, 8), key=lambda i: medians[i - 1]) == [6, 7, 3, 4, 5, 2, 1]
    best, cudnn = explained()["best"]["ms"], statistics.median(ranked("ncu")["cuDNN"])
    assert cudnn < best < statistics.median(ranked("ncu")["FA2"]) < min(medians)
    assert max(medians[2:]) < min(medians[2:]) * 1.03, "little happens after step 3"
    one = explained()
    again = [one[str(i)]["ms"] for i in range(1, 8)]
    first = [statistics.median(samples) for samples in steps("ncu")]
    apart = max(abs(a / b - 1) for a, b in zip(again, first, strict=True))
    assert max(abs(run[3] / run[2] - 1) for run in (first, again)) < apart, "step 4"
    for a, b in ((3, 4), (5, 6)):  # steps 4 to 5 and 6 to 7
        assert (first[b] > first[a]) != (again[b] > again[a]), "the other run has the other sign"
    assert stalls("3")["short_scoreboard"] < stalls("4")["short_scoreboard"]
    medians = [statistics.median(samples) for samples in steps("events")[2:]]
    apart = max(medians) - min(medians)
    assert all(max(samples) - min(samples) > apart for samples in steps("events")[2:])


@pytest.mark.parametrize(
    ("step", "largest"),
    [("2", "long_scoreboard"), ("6", "short_scoreboard"), ("best", "wait")],
)
def test_largest_stall_that_the_prose_names(step: str, largest: str) -> None:
    found = stalls(step)
    assert max(found, key=found.__getitem__) == largest
    if step == "best":
        assert 2 * found[largest] > sum(found.values())
