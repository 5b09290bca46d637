"""The pairs of a confirmation, without a GPU."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune import families
from fa_tune.build.native.call import problem_of
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import ABTestItem, ABTestJob
from fa_tune.core.workload import DType, Workload
from fa_tune.families.plan import TensorRole

pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.gpu.jobs import ab_test as confirm
from fa_tune.operations.base import Problem
from fa_tune.operations.forward.torch_side import inputs as make_inputs

WORKLOAD = Workload(1, 1, 1, 64, 64, 64, DType.FP16)
ITEM = ABTestItem("a.json", "b.json", chosen="sm80:a", default="sm80:b")
JOB = ABTestJob(items={}, device=0, seed=0, cache_dir="x")
LEADS_TO = {"a.json": "sm80:a", "b.json": "sm80:b"}


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was sampled, in order; a takes 5 ms and b 10 ms, and each sample a little longer than
    the one before."""
    order: list[str] = []

    class Subject:
        def __init__(self, program: Any, problems: list[Any], busy_cycles: int) -> None:
            assert problems
            self.name = program.subject

        def estimate(self) -> float:
            order.append(f"prepare {self.name}")
            return 1.0

        def sample(self) -> float:
            order.append(self.name)
            return {"sm80:a": 5e-3, "sm80:b": 10e-3}[self.name] * (1 + len(order) / 1e4)

    def program(workload: Workload, registry: str, job: ABTestJob) -> Any:
        return SimpleNamespace(subject=LEADS_TO[registry])

    monkeypatch.setattr(confirm, "SETTLE_S", 0.0)
    monkeypatch.setattr(confirm, "Subject", Subject)
    monkeypatch.setattr(confirm._Program, "of", program)
    monkeypatch.setattr(confirm, "problems_of", lambda workload, inputs, seed: [seed] * 3)
    return order


def test_pairs_are_taken_there_and_back(taken: list[str]) -> None:
    found = confirm._pairs(WORKLOAD, ITEM, JOB)
    assert taken[:2] == ["prepare sm80:a", "prepare sm80:b"]
    rounds = [taken[i : i + 4] for i in range(2, len(taken), 4)]
    assert all(one == ["sm80:a", "sm80:b", "sm80:b", "sm80:a"] for one in rounds)
    n = len(found.chosen_s)
    assert n == len(found.default_s) == len(rounds) - 1
    assert n == int(0.6 / 0.0301), "as many as take 0.6 s"
    assert [a / b for a, b in zip(found.chosen_s, found.default_s, strict=True)] == pytest.approx(
        [0.5] * n, rel=1e-12
    ), "a drift is no difference"


def test_a_program_that_would_get_something_else_is_no_confirmation(taken: list[str]) -> None:
    with pytest.raises(InvalidConfig, match="a program gets sm80:b where the search means"):
        confirm._pairs(WORKLOAD, replace(ITEM, default="sm80:c"), JOB)
    assert [t for t in taken if not t.startswith("prepare")] == []


def test_a_program_launches_what_its_registry_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = Workload(2, 2, 1, 64, 64, 64, DType.FP16, causal=True, lse=True, sink=True)
    family = families.get("sm80")
    config = family.default_config(64, DType.FP16)
    plan = family.plan(config, family.traits(config, workload), "sm_80").plan
    prepared: list[int] = []
    kernel: Any = SimpleNamespace(plan=plan, prepare=prepared.append)
    choice = SimpleNamespace(artifact="made", subject="sm80:a", attend=None)
    chooser = SimpleNamespace(choose=lambda of: choice if of == workload else None)
    loads = {"made": kernel}
    launched: list[tuple[Any, ...]] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(confirm, "chooser_of", lambda device, registry, cache_dir: chooser)
    monkeypatch.setattr(confirm, "operators", lambda: SimpleNamespace(load=loads.get))
    monkeypatch.setattr(confirm, "outputs_of", partial(confirm.outputs_of, device="cpu"))
    monkeypatch.setattr(confirm.python_op, "launch", lambda *given: launched.append(given))
    program = confirm._Program.of(workload, "a.json", JOB)
    inputs = make_inputs(workload, seed=0, device="cpu")
    program.bind(Problem(workload, inputs, {}))()
    ((used, problem, tensors, device),) = launched
    assert (program.subject, used, device, prepared) == ("sm80:a", kernel, 3, [3])
    assert bytes(problem) == bytes(problem_of(workload))
    assert tensors.of[TensorRole.Q].address == inputs["q"].data_ptr()
    assert all(tensors.of[role].address for role in (TensorRole.O, TensorRole.LSE, TensorRole.SINK))

    called: list[Any] = []
    choice.subject, choice.attend = "ref:fa2", lambda of: lambda *given: called.append((of, given))
    served = confirm._Program.of(workload, "a.json", JOB)
    served.bind(Problem(workload, inputs, {}))()
    assert (served.subject, len(launched)) == ("ref:fa2", 1)
    ((of, given),) = called
    assert (of, given[0] is inputs["q"], given[3]) == (workload, True, None)
