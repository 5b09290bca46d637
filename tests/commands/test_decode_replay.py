"""Decoding with lengths on the device, replayed from what one search on an H200 measured."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from fa_tune.core.workload import Workload
from fa_tune.store.table.read_csv import parse_rows
from tests.commands.console import Console
from tests.commands.test_page import page_document
from tests.project_files import ROOT

FOLDER = ROOT / "tests" / "data" / "decode"
RECORDED = FOLDER / "nvidia_h200" / "decode_h64_kv8_lognormal_events.csv"
KEY = "b64_h64_kv8_q1_k32768_d128_bf16_full_cachelognormal-1-0"
OPTIONS = (
    *("--seq-lens", "1", "--seq-lens-kv", "32768", "--batch", "64", "--heads", "64"),
    *("--kv-heads", "8", "--dtype", "bf16", "--cache-lengths", "lognormal-1-0"),
)
# Q and O of 64 sequences, K and V of the keys that there are, and their lengths.
MOVED = 2 * 64 * 64 * 128 * 2 + 2 * 375_065 * 8 * 128 * 2 + 64 * 4
PEAK = 4.8e12


def seconds(kernel: str) -> float:
    """The median of a kernel's samples in the recording's text."""
    (row,) = [
        row
        for row in parse_rows(RECORDED.read_text("utf-8"), str(RECORDED))
        if row.kernel == kernel
    ]
    assert row.samples_s
    return statistics.median(row.samples_s)


def test_the_keys_are_those_of_the_drawn_lengths() -> None:
    assert sum(keys for _, keys in Workload.from_key(KEY).members) == 375_065


def test_a_replay_chooses_and_says_how_near_the_memory_is(console: Console, tmp_path: Path) -> None:
    # Beside the default only the next fastest: two kernels to compile.
    other = ("--kernels", "decode(BF16, 128, 16, 32, 2): ctas_4+aligned")
    search = ("search", *other, *OPTIONS, "--recordings", str(FOLDER), "--ref", "read")
    done = console(*search, "--json")
    assert done.status == 0, done.err
    (found,) = done.json["workloads"]
    chosen = "decode(BF16, 128, 16, 64, 4): ctas_2+aligned"
    assert found["workload"] == KEY
    assert found["decision"]["chosen"]["subject"] == f"decode:{chosen}"
    rate = MOVED / seconds(chosen)
    assert found["memory"]["bytes_per_s"] == pytest.approx(rate)
    assert found["memory"]["of_peak"] == pytest.approx(rate / PEAK)
    assert found["memory"]["of_read"] == pytest.approx(
        seconds("bare read") / seconds(chosen), rel=0.01
    )
    shown = console("registry", "show")
    assert f"{rate / 1e9:.0f}" in shown.out
    assert all(len(line) <= 80 for line in shown.out.splitlines() if str(tmp_path) not in line)
    best = console("registry", "best", "--workload", KEY, "--json")
    assert best.json["config"] == chosen


def test_the_report_and_the_page_have_gigabytes_of_every_kernel(
    console: Console, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    done = console("report", str(RECORDED), "--html", str(page), "-f", "json")
    every = {row["kernel"]: row for row in done.json["rows"]}
    assert "bytes_per_s" not in every["FA2"], "which refused the cache"
    rows = {kernel: row for kernel, row in every.items() if row["outcome"] == "ok"}
    for kernel, row in rows.items():
        assert row["bytes_per_s"] == pytest.approx(MOVED / seconds(kernel)), kernel
    shown = {row["kernel"]: row for row in page_document(page)["sections"]["results"]}
    assert shown.keys() == every.keys()
    for kernel in rows:
        row = shown[kernel]
        rate = MOVED / seconds(kernel)
        assert row["gb_per_s"] == pytest.approx(rate / 1e9)
        assert row["peak_percent"] == pytest.approx(100 * rate / PEAK)
