"""The formats: the same rows as text, Markdown, CSV and JSON."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType
from fa_tune.report.formats import write
from fa_tune.store.table.columns import COLUMNS
from fa_tune.store.table.read_csv import parse_rows
from fa_tune.store.table.rows import Row, completed
from fa_tune.store.table.write_csv import write_csv

BASE = Row(
    "",
    family="sm80",
    batch=2,
    heads=4,
    kv_heads=2,
    seq_len=256,
    seq_len_kv=512,
    d_head=64,
    dtype=DType.BF16,
    causal=False,
    method="ncu",
)
ROWS = completed(
    [
        replace(BASE, kernel="FA2", family="ref", duration_s=0.002, cycles=3e6, registers=255),
        *(replace(BASE, kernel=f"k{i}", duration_s=(i + 1) / 1000) for i in range(30)),
        replace(BASE, kernel="bad|one", outcome=Outcome.CRASHED, reason="line one\nline two"),
        replace(BASE, kernel="other", seq_len=1024, duration_s=0.004),
    ]
)


def _text(fmt: str, rows: list[Row] | None = None, limit: int | None = None) -> str:
    stream = io.StringIO()
    write(ROWS if rows is None else rows, fmt, stream, limit=limit)
    return stream.getvalue()


def test_text_has_a_table_per_workload() -> None:
    text = _text("table", limit=2)
    assert text.startswith("seq_len 256x512, d_head 64, BF16, full, batch 2, 4 heads (2 kv); ncu\n")
    assert "seq_len 1024x512" in text
    assert "… 29 more, 1 of them without a result" in text
    assert text.index("FA2") < text.index(" k0 ") < text.index(" k1 ")
    assert " k2 " not in text
    marked = [line for line in _text("table").splitlines() if line.startswith("| *")]
    assert [line.split("|")[2].strip() for line in marked] == ["k0", "other"]


def test_best_is_shown_however_low_the_limit() -> None:
    assert "| * | k0" in _text("table", limit=1)
    unsteady = [
        replace(BASE, kernel="a", duration_s=0.002, median_s=0.002, n=3),
        replace(BASE, kernel="b", duration_s=0.009, median_s=0.001, n=3),
    ]
    text = _text("table", unsteady, limit=1)
    assert "| * | b" in text
    assert "… 1 more" in text
    assert "median (ms)" in text


def test_text_shows_failures_on_one_line() -> None:
    text = _text("table", limit=100)
    (line,) = (line for line in text.splitlines() if "bad|one" in line)
    assert "crashed" in line
    assert "line one line two" in line
    assert " 0" not in line  # no value is not a zero
    assert _text("table", []) == ""
    assert _text("markdown", []) == ""
    assert json.loads(_text("json", []))["rows"] == []


def test_markdown() -> None:
    text = _text("markdown")
    lines = text.splitlines()
    assert lines[0].startswith("### seq\\_len 256x512")
    tables = [line for line in lines if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in tables[:34]}
    assert len(widths) == 1
    assert any(line.startswith("| **k0** | **1.000** |") for line in tables)
    assert any("bad\\|one" in line for line in tables)
    assert "k29" in text  # all rows unless limited
    assert "k29" not in _text("markdown", limit=5)


def test_what_follows_from_times_is_in_reports_and_not_in_recordings() -> None:
    """GB/s are derived: a report has them, a recording does not, and readers pass them over."""
    few = completed(
        replace(row, seq_len=1, duration_s=row.duration_s and row.duration_s / 1000)
        for row in ROWS[:3]
    )
    rate = few[0].bytes_per_s
    assert rate is not None
    assert f" {rate / 1e9:.0f} |" in _text("table", few)
    report = _text("csv", few)
    heading, first = report.splitlines()[:2]
    at = heading.split(",").index("GB/s")
    assert float(first.split(",")[at]) == pytest.approx(rate / 1e9)
    notes: list[str] = []
    assert parse_rows(report, "it", on_note=notes.append) == few
    assert notes == []
    recording = io.StringIO()
    write_csv(few, recording)
    assert "GB/s" not in recording.getvalue()
    assert "GB/s" not in _text("csv")  # memory is not the limit


def test_json_has_base_units_and_null() -> None:
    document = json.loads(_text("json", limit=1))
    assert document["schema"] == "fa-tune-report-1"
    assert len(document["rows"]) == len(ROWS)
    first = document["rows"][0]
    assert list(first) == [column.field for column in COLUMNS if not column.only_unless]
    assert "op" not in first, "all are of the usual operation"
    assert (first["kernel"], first["duration_s"], first["dtype"]) == ("FA2", 0.002, "BF16")
    assert first["l2_hit_percent"] is None
    failed = next(row for row in document["rows"] if row["outcome"] == "crashed")
    assert failed["duration_s"] is None
    assert failed["reason"] == "line one\nline two"
