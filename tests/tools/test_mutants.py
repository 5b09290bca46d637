"""What tests/mutants.toml accepts is there and has a reason; how survivors are read."""

from __future__ import annotations

import tomllib

import pytest

import mutants
from tests.project_files import ROOT


def test_what_is_accepted_is_in_the_module_and_has_a_reason() -> None:
    kept = tomllib.loads((ROOT / mutants.ACCEPTED).read_text(encoding="utf-8"))
    for module, of in kept.items():
        text = (ROOT / module).read_text(encoding="utf-8")
        for one in of["accepted"]:
            assert all(line in text for line in one["before"].split(" ⏎ ")), one
            assert one["after"] != one["before"]
            assert one["why"]


def test_the_lines_of_a_diff() -> None:
    diff = "--- a.py\n+++ a.py\n@@ -1,2 +1,2 @@\n def f():\n-    return a + b\n+    return a - b\n"
    assert mutants.change_of(diff) == ("return a + b", "return a - b")


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ('raise E("no")', 'raise E("XXnoXX")', True),
        ('raise E("no")', 'raise E("NO")', True),
        ("a < b", "a <= b", False),
    ],
)
def test_changed_words_are_no_mutants(before: str, after: str, words: bool) -> None:
    assert mutants.is_of_words((before, after)) is words


def test_operators_of_cpp_are_changed_one_by_one() -> None:
    text = "// a < b\nif (a < b && c)\n    return a + 1;\n"
    changed = [(number, after) for number, (_, after) in mutants.changes_of(text)]
    assert sorted(changed) == [
        (1, "if (a < b || c)"),
        (1, "if (a <= b && c)"),
        (2, "    return a - 1;"),
    ]
