"""Each C++ file includes what declares the integers it names: some standard libraries bring them
along with other headers, and some do not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.project_files import ROOT

SUFFIXES = (".cpp", ".h", ".hpp")
FILES = sorted(
    path
    for folder in ("csrc", "tests/csrc")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in SUFFIXES
)
HEADER_OF = {r"std::u?int(ptr|\d+)_t\b": "<cstdint>", r"std::size_t\b": "<cstddef>"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_includes_what_declares_its_integers(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for name, header in HEADER_OF.items():
        assert not re.search(name, text) or f"#include {header}" in text, header
