"""Notes, warnings and errors: whole lines for programs, lines that fit for people."""

from __future__ import annotations

from pathlib import Path

from tests.commands.console import Console, on_a_terminal

WRONG = ("search", "--lengths", "a-mixture-that-nobody-knows-and-that-is-long-enough-to-be-cut")


def test_programs_get_an_error_in_one_line_and_terminals_lines_cut_between_words(
    console: Console, tmp_path: Path
) -> None:
    error = console(*WRONG).lines[-1]
    assert error.startswith("error: ")
    assert len(error) > 80
    told, _, status = on_a_terminal(["-m", "fa_tune", *WRONG], tmp_path, COLUMNS="60")
    assert status
    shown = told.splitlines()
    at = next(i for i, line in enumerate(shown) if line.startswith("error: "))
    words = max(len(word) for line in shown for word in line.split())
    assert max(map(len, shown[at:])) <= max(60, words + 2)
    assert " ".join(" ".join(shown[at:]).split()) == error
