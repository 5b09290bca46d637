"""How long an item of a job may be silent."""

from __future__ import annotations

from typing import Any

import pytest

from fa_tune.core.jobs import KernelItem
from fa_tune.gpu import guard


class _Report:
    """Keeps how long each item may take."""

    def __init__(self) -> None:
        self.allowed_s: list[float | None] = []

    def begin(self, item: str, timeout_s: float | None = None) -> None:
        self.allowed_s.append(timeout_s)

    def done(self, item: str, value: Any) -> None:
        pass


def test_the_first_item_of_each_kind_has_the_whole_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes what must come out of the others, too."""
    monkeypatch.setattr(guard, "use_device", lambda index: None)
    monkeypatch.setattr(guard, "runner_of", lambda item: item)
    monkeypatch.setattr(guard.torch.cuda, "synchronize", lambda: None)
    report, items = _Report(), {name: KernelItem(name) for name in ("a1", "a2", "b1", "b2", "a3")}
    guard.check_runners(
        *(0, items, report, lambda runner, name: name),  # type: ignore[arg-type]
        item_timeout_s=60.0,
        kind=lambda name: name[0],
    )
    least = guard.HANG_LEAST_S
    assert report.allowed_s == [60.0, least, 60.0, least, least]
