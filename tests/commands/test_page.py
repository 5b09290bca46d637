"""`report --html` and `search --html`: what is written, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.commands import fakes
from tests.commands.console import Console
from tests.commands.fakes import Put
from tests.project_files import ROOT

H200 = ROOT / "profiles" / "nvidia_h200"
RECORDED = H200 / "fast_ncu.csv"


def page_document(path: Path) -> dict[str, Any]:
    text = re.search(
        r'<script type="application/json" id="fa-tune-page">(.*?)</script>', path.read_text()
    )
    assert text is not None
    document: dict[str, Any] = json.loads(text[1])
    return document


def test_the_page_has_the_rows_and_the_provenance_of_the_report(
    console: Console, tmp_path: Path
) -> None:
    """Against itself nothing differs."""
    page = tmp_path / "page.html"
    both = ("--against", str(RECORDED), "-f", "json")
    done = console("report", str(RECORDED), "--html", str(page), *both)
    assert done.status == 0
    rows = done.json["rows"]
    sections = page_document(page)["sections"]
    shown = sections["results"]
    assert [r["kernel"] for r in shown] == [row["kernel"] for row in rows]
    assert [r["median_ms"] for r in shown] == pytest.approx([1e3 * r["median_s"] for r in rows])
    fastest = [r for r in shown if r["chosen"]]
    assert len(fastest) == len({r["workload"] for r in shown})
    assert {r["ratio"] for r in sections["differences"]} == {1.0}
    meta = json.loads(RECORDED.with_suffix(".meta.json").read_text())["provenance"]
    text = page.read_text()
    assert meta["recorded_at"][:16].replace("T", " ") in text
    assert meta["kernel_source_sha256"] in text


def test_counters_explain_the_runner_up(console: Console, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    explained = H200 / "ladder_explain.json"
    assert console("report", str(explained), "--html", str(page)).status == 0
    told = page_document(page)["sections"]["explained"]
    assert told
    assert all(r["winner"] != r["runner_up"] for r in told)
    assert told[0]["sentences"]


def test_names_cannot_break_out_of_the_page(console: Console, tmp_path: Path) -> None:
    hostile = "</script><script>alert(1)</script>"
    table = tmp_path / "x.csv"
    table.write_text(f'Kernel Name,Dur (ms),family\n"{hostile}",1.5,ref\n')
    page = tmp_path / "page.html"
    console("report", str(table), "--html", str(page))
    assert hostile not in page.read_text()
    assert page_document(page)["sections"]["results"][0]["kernel"] == hostile


def test_wrong_uses_are_refused(console: Console, tmp_path: Path) -> None:
    assert console("report", str(RECORDED), "--against", str(RECORDED)).status == 2
    nowhere = tmp_path / "nowhere" / "page.html"
    assert console("report", str(RECORDED), "--html", str(nowhere)).status == 2
    assert console("report", str(H200 / "ladder_explain.json")).status == 5


def test_a_search_writes_its_page(console: Console, stub: Put, tmp_path: Path) -> None:
    stub("fa_tune.tune.flow.search", fakes.search_result())
    page = tmp_path / "page.html"
    assert console("search", "--html", str(page)).status == 0
    document = page_document(page)
    result = fakes.search_result().results[0]
    assert result.decision is not None
    chosen = {f"{r['family']}:{r['kernel']}" for r in document["sections"]["answers"]}
    assert chosen == {result.decision.chosen.subject}
    assert fakes.WHOSE in page.read_text()
