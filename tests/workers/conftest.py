"""No test of supervision may leave anything behind."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.runs import running, wait_until, zombies


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After every test: no process of it, no zombie, no temporary file."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    wait_until(lambda: not running(tmp_path))
    assert list(temporary.iterdir()) == []
    assert zombies() == []
