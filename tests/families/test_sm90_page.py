"""docs/kernel-sm90.md says what the code says."""

from __future__ import annotations

import dataclasses
import re

from fa_tune.families.sm90.config import ENTRY_OVERHEAD, REGISTER_BUDGET, Sm90Config
from fa_tune.families.sm90.constraints import CONSTRAINTS
from fa_tune.families.sm90.names import parse
from tests.project_files import ROOT

PAGE = (ROOT / "docs" / "kernel-sm90.md").read_text("utf-8")


def cells(name: str) -> list[list[str]]:
    """The rows below the header of the table between two comments."""
    text = PAGE[PAGE.index(f"<!-- {name} -->") : PAGE.index(f"<!-- /{name} -->")]
    rows = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_it_has_every_constraint() -> None:
    assert cells("constraints") == [[f"`{name}`", sentence] for name, sentence, _ in CONSTRAINTS]


def test_it_has_every_field_and_word() -> None:
    rows = cells("fields")
    fields = dataclasses.fields(Sm90Config)
    assert [row[0] for row in rows] == [f"`{f.name}`" for f in fields]
    for (_, short, _), f in zip(rows, fields, strict=True):
        meta = f.metadata
        match meta["place"]:
            case "flag":
                assert short == f"`{meta['word']}`"
            case "count" | "number":
                assert short == f"`{meta['word']}_2`"
            case "choice":
                words = [f"`{member.word}`" for member in meta["type"] if member is not f.default]
                assert short == ", ".join(words)


def test_its_examples_are_short_forms() -> None:
    shown = re.findall(r"`(sm90\((?!dtype)[^`]*)`", PAGE)
    assert shown
    assert [str(parse(text)) for text in shown] == shown


def test_it_has_the_register_budgets() -> None:
    found = [[str(n) for n in (*key, budget)] for key, budget in REGISTER_BUDGET.items()]
    assert cells("registers") == found
    assert f"one wgmma and {ENTRY_OVERHEAD} registers more" in PAGE
