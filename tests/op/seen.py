"""A capture for a test, and what became of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import fa_tune.op
from fa_tune.store.capture.schema import Capture, Usage, load

attend = torch.nn.functional.scaled_dot_product_attention


class Seen:
    """What became of a capture."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def capture(self) -> Capture:
        return load(self.path)

    def counts(self) -> dict[tuple[str, str], int]:
        """Runs by operation and who served."""
        found: dict[tuple[str, str], int] = {}
        for usage in self.capture.usages:
            key = usage.problem.op, usage.served.by
            found[key] = found.get(key, 0) + usage.runs
        return found

    def one(self, op: str = "forward") -> Usage:
        (found,) = (u for u in self.capture.usages if u.problem.op == op)
        return found


@contextmanager
def capturing(folder: Path, **options: Any) -> Iterator[Seen]:
    seen = Seen(folder / "a.json")
    with fa_tune.op.capture(seen.path, **options):
        yield seen


def draw(*shape: int, grad: bool = False) -> torch.Tensor:
    return torch.randn(*shape).requires_grad_(grad)
