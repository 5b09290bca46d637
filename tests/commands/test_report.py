from __future__ import annotations

import csv
import io
import json
import os
import sys
import threading
from pathlib import Path

import pytest

from fa_tune.commands.views.row_table import show_rows
from fa_tune.store.table.rows import Row
from tests.commands.console import Console
from tests.project_files import ROOT

DATA = ROOT / "tests" / "report" / "data"
RAW = DATA / "raw_h200_seq4096.csv"
DETAILS = DATA / "details_h200_seq1024.csv"


def _stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_table_of_an_ncu_file_names_the_winner(console: Console) -> None:
    done = console("report", str(RAW), "--limit", "1", "--wide")
    assert done.status == 0
    assert "… 44 more" in done.out
    last = done.out.splitlines()[-1]
    assert "the fastest of 45 configs is (FP16, 128, 128, 64, 4): async+eager" in last
    assert "1.04x that of FA2" in last


def test_a_report_begins_with_where_its_numbers_come_from_or_warns(console: Console) -> None:
    recorded = ROOT / "profiles" / "nvidia_h200" / "prog_events.csv"
    meta = json.loads(recorded.with_suffix(".meta.json").read_text())
    origin = meta["provenance"]
    for form in ("text", "markdown"):
        first, *_ = console("report", str(recorded), "-f", form, "--limit", "1").out.splitlines()
        for said in (origin["gpu"], origin["driver"], origin["recorded_at"][:10], "inputs normal"):
            assert said in first
        done = console("report", str(RAW), "-f", form, "--limit", "1")
        assert "GPU, driver, date or inputs" in done.err
        assert "GPU" not in done.out.splitlines()[0]
    assert "GPU" not in console("report", str(RAW), "-f", "json").err


def test_several_files_are_not_ranked_together(console: Console) -> None:
    done = console("report", str(RAW), str(DETAILS), str(RAW), "-f", "json")
    rows = done.json["rows"]
    assert {row["source"] for row in rows} == {str(RAW), str(DETAILS)}
    assert len([r for r in rows if r["source"] == str(RAW)]) == 47  # named twice, read once


def test_a_broken_file_in_a_folder_is_left_out_with_a_warning(
    console: Console, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("no such thing\nas a table\n")
    alone = console("report", str(tmp_path))
    assert (alone.status, alone.out) == (5, "")
    assert alone.err.count("\n") == 1
    for name in ("b.csv", "c.csv"):
        (tmp_path / name).write_bytes(RAW.read_bytes())
    done = console("report", str(tmp_path), "-f", "json")
    assert done.status == 0
    assert {row["source"] for row in done.json["rows"]} == {"b.csv", "c.csv"}
    (warning,) = [line for line in done.lines if "a.csv" in line]
    assert warning.startswith("warning: ")


@pytest.mark.parametrize("path", [RAW, DETAILS])
def test_standard_input_says_the_same_as_the_file(
    console: Console, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    _stdin(monkeypatch, path.read_bytes())
    assert console("report", "-", "-f", "csv").out == console("report", str(path), "-f", "csv").out
    ours = console("report", str(RAW), "-f", "csv").out
    _stdin(monkeypatch, ours.encode())
    assert console("report", "-", "-f", "csv").out == ours


SIZES = ("--seq-len", "4096", "--d-head", "128", "--batch", "16", "--heads", "16")


@pytest.fixture
def cudnn(tmp_path: Path) -> str:
    """A file of a kernel whose name and grid say little of its workload."""
    lines = RAW.read_text().splitlines(keepends=True)
    path = tmp_path / "cudnn.csv"
    path.write_text("".join(n for n in lines if "cudnn" in n or "flash" not in n))
    return str(path)


def test_workload_options_say_what_a_file_leaves_open(console: Console, cudnn: str) -> None:
    options = ("-f", "json", "--full", *SIZES, "--dtype", "fp16")
    (row,) = console("report", cudnn, *options).json["rows"]
    assert (row["seq_len"], row["d_head"], row["batch"], row["heads"]) == (4096, 128, 16, 16)
    assert row["matmul_tflops"] > 0
    done = console("report", str(RAW), "--batch", "32")
    assert (done.status, done.out) == (2, "")
    assert str(RAW) in done.err
    assert done.err.count("\n") == 1


def test_a_filter_that_leaves_nothing_is_not_a_file_without_measurements(console: Console) -> None:
    path = ROOT / "profiles" / "nvidia_h200" / "fast_ncu.csv"
    done = console("report", str(path), "--batch", "3")
    assert done.status == 4
    assert "batch 3" in done.err
    assert "16" in done.err  # what the rows have
    assert "options" in done.err.splitlines()[-1]


def test_a_mask_has_the_names_of_a_search(console: Console, cudnn: str) -> None:
    def told(*options: str) -> str:
        return console("report", cudnn, "-f", "csv", *SIZES, *options).out

    assert told("--mask", "full") == told("--full")
    assert console("report", cudnn, "--mask", "causal", "--causal", "--top-left").status == 0
    assert told("--mask", "causal") == told("--causal", "--top-left") != told("--full")
    longer = ("--seq-len-kv", "8192")
    bottom_right = told("--mask", "causal_br", *longer)
    assert bottom_right == told("--causal", "--bottom-right", *longer)
    assert bottom_right != told("--mask", "causal", *longer)
    recorded = str(ROOT / "profiles" / "nvidia_h200" / "fast_d_v_128_events.csv")
    rows = {
        mask: console("report", recorded, "-f", "json", "--mask", mask).json["rows"]
        for mask in ("causal", "causal_br")
    }
    assert {row["causal"] for row in rows["causal"]} == {True}
    assert rows["causal_br"] == rows["causal"], "with equal lengths it is the same"


@pytest.mark.parametrize(
    ("sort", "column", "descending"),
    [
        ("time", "Dur (ms)", False),
        ("registers", "Regs", False),
        ("tflops", "TFLOP/s", True),
        ("l2", "L2 Hit %", True),
    ],
)
def test_sort_orders_by_the_column(
    console: Console, sort: str, column: str, descending: bool
) -> None:
    out = console("report", str(RAW), "-f", "csv", "--sort", sort).out
    values = [float(row[column]) for row in csv.DictReader(io.StringIO(out)) if row[column]]
    assert len(values) > 40
    assert values == sorted(values, reverse=descending)


AMBIGUOUS = (
    '"ID","Process ID","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",'
    '"gpu__time_duration.sum"\n'
    '"","","","","","","","","","msecond"\n'
    '"0","1","kernel","1","7","(128, 1, 1)","(64, 16, 16)","0","9.0","{}"\n'
)


@pytest.mark.parametrize(("decimal", "duration_s"), [(".", 1.234), (",", 0.001234)])
def test_decimal_decides_what_a_separator_means(
    console: Console, tmp_path: Path, decimal: str, duration_s: float
) -> None:
    path = tmp_path / "ambiguous.csv"
    path.write_text(AMBIGUOUS.format("1,234"))
    done = console("report", str(path), "--decimal", decimal, "-f", "json")
    assert done.status == 0, done.err
    assert done.json["rows"][0]["duration_s"] == pytest.approx(duration_s)


BROKEN: dict[str, tuple[bytes, int]] = {
    "empty": (b"", 5),
    "binary": (bytes(range(256)) * 8, 5),
    "a report": (b"NVR\x00" + bytes(200), 5),
    "json": (b'{"schema": 1}', 5),
    "prose": (b"no such thing\nas a table\n", 5),
    "a cut row": (b"Kernel Name,Dur (ms),Regs\nFA2,1.0\n", 5),
    "no number": (b"Kernel Name,Dur (ms)\nFA2,fast\n", 5),
    "a heading alone": (b"Kernel Name,Dur (ms)\n", 4),
    "a separator alone": (b"a,b\rc,d\r" * 100, 5),
    "quotes": (b'"' * 200_000, 5),
    "a row twice": (RAW.read_bytes().replace(b'"0","2212"', b'"1","2212"', 1), 5),
    "no kernels": (b"==PROF== Connected\n==WARNING== No kernels were profiled.\n", 5),
}


@pytest.mark.parametrize("what", BROKEN)
@pytest.mark.parametrize("piped", [False, True])
def test_broken_files_end_in_one_line(
    console: Console, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str, piped: bool
) -> None:
    data, status = BROKEN[what]
    path = tmp_path / "broken.csv"
    path.write_bytes(data)
    _stdin(monkeypatch, data)
    done = console("report", "-" if piped else str(path))
    assert done.status == status
    assert not done.out
    assert len([line for line in done.lines if line.startswith("error: ")]) == 1
    assert ("standard input" in done.err or piped is False) or what == "a heading alone"


def test_a_pipe_and_a_table_whose_header_stands_twice_are_read_once(
    console: Console, tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(RAW.read_bytes(),))
    writer.start()
    done = console("report", str(pipe), "--format", "csv")
    writer.join()
    assert done.status == 0
    assert done.out == console("report", str(RAW), "--format", "csv").out
    lines = RAW.read_text().splitlines(keepends=True)
    (header,) = (i for i, line in enumerate(lines) if "Kernel Name" in line)
    path = tmp_path / "twice.csv"
    path.write_text("".join([*lines[: header + 1], *lines[header:]]))
    done = console("report", str(path), "--format", "csv")
    assert done.status == 0
    assert done.out == console("report", str(RAW), "--format", "csv").out


def test_closed_standard_input(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    done = console("report", "-")
    assert done.status != 0
    assert done.err.startswith("error: ")


@pytest.mark.parametrize("form", ["text", "wide", "markdown", "json"])
def test_what_a_terminal_would_obey_is_shown_escaped(
    console: Console, tmp_path: Path, form: str
) -> None:
    """A foreign name may hold anything; a document says the same by its own escapes."""
    name = "evil\x1b]0;title\x07\u202etxt"
    path = tmp_path / f"{name}.csv"
    path.write_text(RAW.read_text().replace("flash_fwd_kernel", name))
    shown = console("report", str(path), *(["--wide"] if form == "wide" else ["-f", form]))
    assert shown.status == 0
    assert not set(shown.out + shown.err) & {"\x1b", "\x07", "\u202e"}
    if form == "json":
        assert any(name in row["kernel"] for row in shown.json["rows"])


def test_a_reason_that_several_have_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [Row(name, family="ref", duration_s=1.0, reason="no rates") for name in ("A", "A", "B")]
    show_rows(rows, None, wide=False, summed_up=False)
    assert capsys.readouterr().out.count("no rates") == 1


def test_a_log_of_a_failed_run_advises_nothing_that_report_has_not(
    console: Console, tmp_path: Path
) -> None:
    (tmp_path / "run.log").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have …\n")
    refused = console("report", "run.log")
    assert refused.status == 5
    assert "counters are restricted" in refused.err
    assert "--profiler" not in refused.err
