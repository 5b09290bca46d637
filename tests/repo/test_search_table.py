"""The table of search strategies in benchmarks/search_experiments.md has the kept results."""

from __future__ import annotations

import json

from search_table import BEGIN, END, table, with_table
from tests.project_files import ROOT


def test_the_page_has_the_table_of_the_results() -> None:
    page = (ROOT / "benchmarks" / "search_experiments.md").read_text(encoding="utf-8")
    results = ROOT / "benchmarks" / "search_strategies_h200.json"
    made = table(json.loads(results.read_text(encoding="utf-8")))
    assert with_table(page, made) == page
    assert page.count(BEGIN) == page.count(END) == 1
