"""A process for all judgements, which are short."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fa_tune.tune.judge import draws, timing
from fa_tune.tune.judge.process import Process
from tests.judge.copies import copied_workers
from tests.judge.court import trusted


@pytest.fixture(scope="module")
def ours() -> Iterator[Process]:
    """What knows the answers; beside it, targets' processes are copies."""
    with copied_workers(), trusted() as process:
        yield process


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "MOST_LENGTH", 300)
    monkeypatch.setattr(draws, "MOST_BLOCKS", 2)
    monkeypatch.setattr(timing, "OUTSIDE_S", 0.2)
