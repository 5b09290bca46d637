"""A program that plays ncu."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.jobs import ProfileJob
from tests.profile.ncu.ncu_bench import FakeNcu


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeNcu:
    monkeypatch.setattr(ProfileJob, "handler", "tests.profile.ncu.ncu_child:handle")
    return FakeNcu(tmp_path, monkeypatch)
