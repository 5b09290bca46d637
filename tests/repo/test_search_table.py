"""The table of search strategies: made from results, and the one in the docs is that."""

from __future__ import annotations

import json
from typing import Any

from search_table import BEGIN, END, joined, table, with_table
from tests.project_files import ROOT

RESULTS = ROOT / "benchmarks" / "search_strategies_h200.json"
PAGE = ROOT / "docs" / "strategies.md"


def score(name: str, few: int | None, many: int | None) -> dict[str, Any]:
    needed = {"95%": {"median": 1, "p90": few}, "98%": {"median": 2, "p90": many}}
    return {"strategy": name, "needed": needed}


def document(*scores: dict[str, Any]) -> dict[str, Any]:
    space = {"space": "wide w", "configs": 24, "scores": list(scores)}
    return {"plan": {"limit": 60}, "spaces": [space]}


def test_a_row_has_what_nine_tenths_need_and_kernel_tuner_s_best() -> None:
    made = table(
        document(
            score("random (calculated)", 30, 400),
            score("learned", 1, 9),
            score("KT pso", 12, None),
            score("KT mls", 11, None),
        )
    )
    assert made.splitlines()[-1] == (
        "| `wide`, 24 | 30 / 400 | 1 / 9 |  |  |  | 11 (mls) | >60 (all) |"
    )


def test_results_are_joined_by_space_and_strategy() -> None:
    one, two = document(score("a", 1, 1)), document(score("a", 2, 2), score("b", 3, 3))
    (space,) = joined([one, two])["spaces"]
    assert [(s["strategy"], s["needed"]["95%"]["p90"]) for s in space["scores"]] == [
        ("a", 1),
        ("b", 3),
    ]
    assert len(one["spaces"][0]["scores"]) == 1


def test_the_page_has_the_table_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    made = table(json.loads(RESULTS.read_text(encoding="utf-8")))
    assert with_table(page, made) == page
    assert page.count(BEGIN) == page.count(END) == 1
