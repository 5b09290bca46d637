"""A file that is not there is status 3, one that is malformed status 5, whichever command reads
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.console import Console

READS = [
    ("report", "FILE.csv"),
    ("explain", "--from", "FILE.json"),
    ("bench-search", "FILE.space.csv.gz"),
    ("spaces", "import", "FILE.json", "--to", "out.space.csv.gz"),
    ("registry", "merge", "FILE.json", "-o", "out.json"),
    ("bench-decisions", "--from", "FILE.json"),
]


@pytest.mark.parametrize("arguments", READS, ids=lambda a: " ".join(a[:2]))
def test_missing_is_3_and_malformed_is_5(
    console: Console, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    missing = console(*arguments)
    assert missing.status == 3, missing.err
    (name,) = [a for a in arguments if a.startswith("FILE")]
    assert name in missing.err
    assert len(missing.lines) == 1
    (tmp_path / name).write_bytes(b"\x00no such form\n")
    malformed = console(*arguments)
    assert malformed.status == 5, malformed.err
    assert malformed.lines[-1].startswith("error: ")
