"""What workers do with inputs that are not normal, without a GPU."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fa_tune.core.jobs import CompareInputsJob, InputsItem, InputsResult, KernelItem
from fa_tune.core.workload import DType, Workload

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.gpu import reference
from fa_tune.gpu.jobs import compare_inputs, verify
from fa_tune.gpu.judged import ForwardReference
from fa_tune.gpu.reference import Inputs
from fa_tune.ops.base import SINK_LAST, CheckCase

WORKLOAD = Workload(1, 1, 1, 64, 64, 64, DType.FP16)
SECONDS = {"sm80:default": 2e-3, "sm80:a": 1e-3, "sm80:b": 3e-3}


class Spoken:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def begin(self, name: str) -> None:
        pass

    def done(self, name: str, value: Any) -> None:
        self.values[name] = value


def test_each_sample_stands_beside_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[str, int]] = []
    order: list[str] = []

    class Subject:
        def __init__(self, launches: list[str], samples: list[float]) -> None:
            assert len(launches) == 3, "an input set each"
            self.name, self.samples = launches[0], samples
            self.relative: list[float] = []

        def estimate(self) -> float:
            return 1.0

        def sample(self) -> float:
            order.append(self.name)
            # The clock falls: the default's samples around one tell how far.
            return SECONDS[self.name] * (1 + 1e-4 * len(order))

    def sets(workload: Workload, spec: str, seed: int) -> list[Inputs]:
        drawn.append((spec, seed))
        small = torch.zeros(1, 64, 1, 64)
        return [Inputs(small, small, small)] * 3

    monkeypatch.setattr(compare_inputs, "Subject", Subject)
    monkeypatch.setattr(compare_inputs, "input_sets_of", sets)
    monkeypatch.setattr(
        compare_inputs, "launchers", lambda item, problem: [item.subject] * len(problem.inputs)
    )
    monkeypatch.setattr(compare_inputs, "guarded", lambda report, name, action: action())
    for name in ("use_device", "warm_up"):
        monkeypatch.setattr(compare_inputs, name, lambda *_: None)
    monkeypatch.setattr(compare_inputs, "SETTLE_S", 0.0)

    kernels = tuple(KernelItem(subject) for subject in SECONDS)
    items = {f"x {spec}": InputsItem(WORKLOAD.key, spec, kernels) for spec in ("sink", "falling")}
    report = Spoken()
    _, shared, raw = CompareInputsJob(items=items, device=0, seed=7).request()
    compare_inputs.handle(shared, raw, report)  # type: ignore[arg-type]
    assert drawn == [("sink", 7), ("falling", 7)]
    assert set(report.values) == set(items)
    found = InputsResult.from_json(report.values["x sink"])
    assert {len(taken) for taken in (*found.samples_s, *found.relative)} == {compare_inputs.ROUNDS}
    assert set(found.relative[0]) == {1.0}
    assert found.relative[1] == pytest.approx([0.5] * compare_inputs.ROUNDS, rel=1e-6)
    assert found.relative[2] == pytest.approx([1.5] * compare_inputs.ROUNDS, rel=1e-6)
    one_round = ["sm80:default", "sm80:a", "sm80:default", "sm80:b", "sm80:default"]
    assert order[: len(one_round)] == one_round


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reference(ForwardReference):
        def inputs(self, case: CheckCase, **how: Any) -> Inputs:
            return super().inputs(case, **{**how, "device": "cpu"})

    monkeypatch.setattr(verify, "reference_of", lambda workload: Reference())
    monkeypatch.setattr(verify, "empty_outputs", partial(reference.empty_outputs, device="cpu"))
    monkeypatch.setattr(verify, "named_args", lambda tensors: tensors)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0), raising=False
    )


class Kernel:
    """Attention, right unless `blind`: then it does not see key 0."""

    def __init__(self, *, blind: bool) -> None:
        self.blind = blind

    def launch(self, workload: Workload, args: Mapping[str, torch.Tensor], stream: int) -> None:
        k = args["k"].clone()
        if self.blind:
            k[:, 0] = 0
        given = Inputs(args["q"], k, args["v"])
        args["o"][:] = reference.attention(given, workload, dtype=torch.float32)


def test_a_case_is_tried_with_each_kind_of_inputs(on_cpu: None) -> None:
    right: Any = Kernel(blind=False)
    cases = [CheckCase(WORKLOAD), CheckCase(WORKLOAD, SINK_LAST)]
    found = verify.check_all(right, cases, 0, ("sink", "trained"))
    assert found.correct
    assert {case.workload for case in found.cases} == {WORKLOAD.key}
    assert [case.inputs for case in found.cases] == ["normal", SINK_LAST, "sink", "trained"]


def test_inputs_that_a_scale_does_not_allow_are_left_out(on_cpu: None) -> None:
    right: Any = Kernel(blind=False)
    far = dataclasses.replace(WORKLOAD, dtype=DType.FP16, softmax_scale=1e-6)
    found = verify.check_all(right, [CheckCase(far)], 0, ("sink", "normal"))
    assert [case.inputs for case in found.cases] == ["normal", "normal"]


def test_a_kernel_that_does_not_see_the_sink_is_wrong(on_cpu: None) -> None:
    blind: Any = Kernel(blind=True)
    case = verify.check(blind, CheckCase(WORKLOAD, "sink"), 1)
    assert not case.ok
    assert case.max_abs_error > 0.5
