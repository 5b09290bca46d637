"""A page replaces an older one as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.report.page import render
from tests.store.full_disk import refused_with_room


def test_a_full_disk_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    path.write_text("the page before")
    monkeypatch.setattr(render, "page", lambda *_: "longer " * 1000)
    assert refused_with_room(500, lambda: render.write_page(path, ())).startswith("cannot write")
    assert path.read_text() == "the page before"
