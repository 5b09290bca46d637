"""The pairs of a confirmation, without a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import ABTestItem, ABTestJob
from fa_tune.core.workload import DType, Workload

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.core.tensors import workload_of
from fa_tune.operations.base import Problem
from fa_tune.operations.forward.torch_side import inputs as make_inputs
from fa_tune.runtime import ab_test_job as confirm

WORKLOAD = Workload(1, 1, 1, 64, 64, 64, DType.FP16)
ITEM = ABTestItem("a.json", "b.json", chosen="sm80:a", default="sm80:b")
JOB = ABTestJob(items={}, device=0, seed=0, cache_dir="x")
LEADS_TO = {"a.json": "sm80:a", "b.json": "sm80:b"}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was sampled, in order; a takes 1 ms and b 2 ms."""
    order: list[str] = []

    class Subject:
        def __init__(self, program: Any, problems: list[Any], busy_cycles: int) -> None:
            assert problems
            self.name = program.attention.name

        def estimate(self) -> float:
            order.append(f"prepare {self.name}")
            return 1.0

        def sample(self) -> float:
            order.append(self.name)
            return {"sm80:a": 1e-3, "sm80:b": 2e-3}[self.name]

    def attention(registry: str, cache_dir: object) -> Any:
        name = LEADS_TO[registry]
        found = SimpleNamespace(variant=SimpleNamespace(key=name))
        return SimpleNamespace(name=name, chosen=lambda workload: found)

    monkeypatch.setattr(confirm, "SETTLE_S", 0.0)
    monkeypatch.setattr(confirm, "Subject", Subject)
    monkeypatch.setattr(confirm, "Attention", attention)
    monkeypatch.setattr(confirm, "problems_of", lambda workload, inputs, seed: [seed] * 3)
    return order


def test_pairs_are_taken_there_and_back(taken: list[str]) -> None:
    found = confirm._pairs(WORKLOAD, ITEM, JOB)
    assert taken[:2] == ["prepare sm80:a", "prepare sm80:b"]
    rounds = [taken[i : i + 4] for i in range(2, len(taken), 4)]
    assert all(one == ["sm80:a", "sm80:b", "sm80:b", "sm80:a"] for one in rounds)
    n = len(found.chosen_s)
    assert n == len(found.default_s) == len(rounds) - 1 == confirm.MOST
    assert found.chosen_s == (1e-3,) * n
    assert found.default_s == (2e-3,) * n


def test_a_program_that_would_get_something_else_is_no_confirmation(taken: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="a program gets sm80:b where the search means"):
        confirm._pairs(WORKLOAD, replace(ITEM, default="sm80:c"), JOB)
    assert [t for t in taken if not t.startswith("prepare")] == []


@pytest.mark.parametrize(
    "traits",
    [
        {"lse": True},
        {"sink": True},
        {"alibi": True, "causal": True},
        {"window_left": 9, "softcap": 20.0, "softmax_scale": 0.5},
        {"lengths": "5+64+7", "causal": True, "sink": True, "lse": True},
    ],
)
def test_what_is_launched_is_the_workload_of_the_search(
    traits: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another workload may have another kernel, whose time says nothing of the choice."""
    workload = Workload(2, 2, 1, 64, 64, 64, DType.FP16, **traits)
    launched: list[Workload] = []

    class Attention:
        def chosen(self, of: Workload) -> Any:
            kernel = SimpleNamespace(bind=lambda given: lambda: launched.append(given.workload))
            return SimpleNamespace(kernel=kernel if of == workload else None)

        def __call__(
            self,
            *three: Any,
            lse: Any = None,
            out: Any = None,
            sink: Any = None,
            alibi_slopes: Any = None,
            **told: Any,
        ) -> None:
            given = {"lse": lse, "sink": sink, "alibi": alibi_slopes}
            told |= {name: tensor is not None for name, tensor in given.items()}
            launched.append(workload_of(*three, **told))

    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(confirm, "outputs_of", partial(confirm.outputs_of, device="cpu"))
    problem = Problem(workload, make_inputs(workload, seed=0, device="cpu"), {})
    confirm._Program(Attention(), "").bind(problem)()  # type: ignore[arg-type]
    assert launched == [workload]
