"""The pages are easy to read: sentences are short."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator

import pytest

from tests.project_files import ROOT, project_files

# docs/cli.md is the commands' help.
WRITTEN = ["README.md"] + [p for p in project_files() if re.fullmatch(r"docs/(?!cli)[\w-]+\.md", p)]
MEAN, LONGEST = 20, 45  # words


def prose(text: str) -> str:
    """A page without code, tables, headings and comments."""
    text = re.sub(r"^```.*?^```$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^(\||#|!\[).*$", "\n", text, flags=re.MULTILINE)
    text = re.sub(r"`[^`]*`", "Code", text)
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def sentences(text: str) -> Iterator[str]:
    """They end at a full stop, or with their paragraph or list item."""
    for part in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose(text)):
        for found in re.split(r"(?<=[.!?])(?:\*\*)?\s+(?=\W*[A-Z`0-9−+])", part.strip()):
            if words(found) > 2:
                yield " ".join(found.split())


def words(sentence: str) -> int:
    """Words, and numbers; signs alone are none."""
    return len([w for w in sentence.split() if re.search(r"\w", w)])


@pytest.mark.parametrize("page", WRITTEN)
def test_no_sentence_is_long(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    long = [s for s in sentences(text) if words(s) > LONGEST]
    assert not long, f"{page}, over {LONGEST} words:\n" + "\n".join(long)


def test_sentences_are_short() -> None:
    lengths = [words(s) for p in WRITTEN for s in sentences((ROOT / p).read_text("utf-8"))]
    assert statistics.fmean(lengths) < MEAN


def test_what_is_no_prose_is_left_out() -> None:
    text = "# A heading. With two\n\n| a. b | c |\n\nOne [link](x.md) and `a. b`. Two words here.\n"
    assert list(sentences(text)) == ["One link and Code.", "Two words here."]
    assert words("a – b") == 2
