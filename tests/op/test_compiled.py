"""Calls that torch compiles as one graph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no operators")

import torch

from fa_tune.op.operands import Lengths
from fa_tune.op.packed import packed_attention
from fa_tune.op.traits import Traits
from tests.op import twins
from tests.op.twins import draw


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    torch.compiler.reset()
    with twins.registered():
        yield


def test_a_packed_batch_with_the_same_starts_of_queries_and_keys_has_gradients() -> None:
    rows, starts = draw(9, 2, 16), torch.tensor([0, 4, 9], dtype=torch.int32)

    def run(rows: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        lengths = Lengths(starts, starts, 5, 5)
        return packed_attention(rows, rows, rows, lengths, Traits(causal=True))[0]

    found = []
    for call in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        leaf = rows.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(call(leaf, starts).sum(), leaf)
        found.append(gradient)
    assert torch.allclose(*found, atol=1e-6)
