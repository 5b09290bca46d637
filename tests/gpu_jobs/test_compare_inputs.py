"""What workers do with inputs that are not normal, without a GPU."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fa_tune import libraries
from fa_tune.core import codec
from fa_tune.core.comparison import OnInputs
from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import CompareInputsJob, InputsItem, InputsResult, KernelItem
from fa_tune.core.stats import Ratio, median
from fa_tune.core.workload import DType, Workload
from fa_tune.operations.flops import input_bytes
from fa_tune.search.data_dependence import paired_with_own

pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.gpu.jobs import compare_inputs, time_events, verify
from fa_tune.operations.base import SINK_LAST, CheckCase, Launch, Problem
from fa_tune.operations.forward import torch_side
from fa_tune.operations.torch_side import torch_side_of
from tests.tensors import attention

WORKLOAD = Workload(1, 1, 1, 64, 64, 64, DType.FP16)
SMALL = Workload(3, 4, 2, 96, 96, 64, DType.FP16)
SECONDS = {"sm80:default": 2e-3, "sm80:a": 1e-3, "sm80:b": 3e-3}
# By inputs and kernel, times its time on normal ones.
COST = {
    "trained": {"sm80:default": 1.05, "sm80:a": 1.2, "sm80:b": 0.9},
    "normal": {"sm80:default": 1.0, "sm80:a": 1.0, "sm80:b": 1.0},
    "falling": {"sm80:default": 1.1, "sm80:a": 1.4, "sm80:b": 1.0},
}


class Spoken:
    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def begin(self, name: str, timeout_s: float | None = None) -> None:
        pass

    def done(self, name: str, value: Any) -> None:
        self.values[name] = value


class PretendedGpu:
    """Takes `SECONDS` of a kernel times `COST` of its inputs, at a clock of each item's own that
    falls within it."""

    def __init__(self, clocks: Mapping[str, float]) -> None:
        self.drawn: list[tuple[tuple[str, ...], int]] = []
        self.order: list[tuple[str, str]] = []
        self._clocks = clocks

    def run(self, items: Mapping[str, InputsItem]) -> dict[str, InputsResult]:
        report = Spoken()
        _, shared, raw = CompareInputsJob(items=items, device=0, seed=7).request()
        with pytest.MonkeyPatch.context() as monkeypatch:
            self._put_in_place(monkeypatch)
            compare_inputs.handle(shared, raw, report)  # type: ignore[arg-type]
        return {name: codec.load(InputsResult, value) for name, value in report.values.items()}

    def _put_in_place(self, monkeypatch: pytest.MonkeyPatch) -> None:
        gpu = self

        class Subject:
            def __init__(self, subject: str, specs: list[str]) -> None:
                assert len(specs) == 3, "an input set each"
                self.what = subject, specs[0]
                self.samples: list[float] = []
                self.relative: list[float] = []

            def estimate(self) -> float:
                return 1.0

            def sample(self) -> float:
                return gpu.sample(*self.what)

        def problems(workload: Workload, specs: Sequence[str], seed: int) -> list[list[str]]:
            self.drawn.append((tuple(specs), seed))
            self.order.clear()
            return [[spec] * 3 for spec in specs]

        monkeypatch.setattr(compare_inputs, "Subject", Subject)
        monkeypatch.setattr(compare_inputs, "problems_of_each", problems)
        monkeypatch.setattr(compare_inputs, "runner_of", lambda item: item.subject)
        monkeypatch.setattr(compare_inputs, "guarded", lambda report, name, action: action())
        monkeypatch.setattr(compare_inputs, "errors_over_fa2", lambda *_: (None,) * len(SECONDS))
        for name in ("use_device", "warm_up"):
            monkeypatch.setattr(compare_inputs, name, lambda *_: None)
        monkeypatch.setattr(compare_inputs, "SETTLE_S", 0.0)

    def sample(self, subject: str, spec: str) -> float:
        self.order.append((subject, spec))
        clock = self._clocks[self.drawn[-1][0][0]] * (1 - 1e-4 * len(self.order))
        return SECONDS[subject] * COST[spec][subject] / clock


def _items(*specs: str, own: str) -> dict[str, InputsItem]:
    kernels = tuple(KernelItem(subject) for subject in SECONDS)
    return {s: InputsItem(WORKLOAD.key, s, kernels, "" if s == own else own) for s in specs}


def test_each_sample_stands_beside_the_defaults() -> None:
    gpu = PretendedGpu(dict.fromkeys(COST, 1.0))
    found = gpu.run(_items("trained", "falling", own="trained"))
    assert gpu.drawn == [(("trained",), 7), (("falling", "trained"), 7)]
    one_round = ["sm80:default", "sm80:a", "sm80:default", "sm80:b", "sm80:default"]
    assert gpu.order[: len(one_round) + 2] == [
        *((subject, "falling") for subject in one_round),
        ("sm80:default", "trained"),
        ("sm80:default", "falling"),
    ]
    for name, result in found.items():
        lengths = {len(taken) for taken in (*result.samples_s, *result.relative)}
        assert lengths == {compare_inputs.ROUNDS}
        assert len(result.samples_s) == len(result.relative) == len(SECONDS)
        assert set(result.relative[0]) == {1.0}
        cost, seconds = COST[name], list(SECONDS.values())
        for i, subject in enumerate(SECONDS):
            ratio = seconds[i] * cost[subject] / (seconds[0] * cost["sm80:default"])
            assert result.relative[i] == pytest.approx([ratio] * compare_inputs.ROUNDS, rel=1e-6)
    assert found["trained"].to_own_inputs == ()


@given(st.tuples(*[st.floats(0.5, 2.0)] * 3))
def test_what_inputs_cost_does_not_depend_on_the_clock_of_each_item(
    clocks: tuple[float, float, float],
) -> None:
    """The median on one kind over that on another would: it has the clocks of two items."""
    found = PretendedGpu(dict(zip(COST, clocks, strict=True))).run(_items(*COST, own="trained"))
    default_to_own = {x: median(r.to_own_inputs) for x, r in found.items() if r.to_own_inputs}
    assert default_to_own.keys() == COST.keys() - {"trained"}
    for i, subject in enumerate(SECONDS):
        figures = [
            OnInputs(x, median(r.samples_s[i]), Ratio(median(r.relative[i]), None))
            for x, r in found.items()
        ]
        for on in paired_with_own(figures, default_to_own, "trained"):
            cost = COST[on.inputs][subject] / COST["trained"][subject]
            assert on.to_own_inputs == pytest.approx(cost, rel=1e-6)


def test_both_kinds_of_inputs_have_equally_many_sets_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    n_bytes = input_bytes(WORKLOAD)
    l2 = SimpleNamespace(L2_cache_size=10 * n_bytes)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: l2)
    side = SimpleNamespace(inputs=lambda workload, text, seed: (workload, text, seed))
    monkeypatch.setattr(time_events, "torch_side_of", {WORKLOAD: side}.__getitem__)
    monkeypatch.setattr(time_events, "outputs_of", {WORKLOAD: {}}.__getitem__)
    for free, fitting in ((1000, 30), (96, 12), (8, 1), (1, 1)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda free=free: (free * n_bytes, 0))
        each = time_events.problems_of_each(WORKLOAD, ("falling", "trained"), 7)
        expected = [
            [Problem(WORKLOAD, (WORKLOAD, spec, 7 + i), {}) for i in range(fitting)]  # type: ignore[arg-type]
            for spec in ("falling", "trained")
        ]
        assert each == expected
    assert time_events.problems_of(WORKLOAD, "trained", 7) == expected[1]


def test_a_window_takes_as_many_more_sets_as_it_leaves_unread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = Workload.from_key("b1_h8_kv8_q1_k4096_d128_bf16_full")
    windowed = Workload.from_key("b1_h8_kv8_q1_k4096_d128_bf16_full_br_left511")
    l2 = SimpleNamespace(L2_cache_size=input_bytes(whole))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: l2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1 << 40, 0))
    times = time_events.input_sets(windowed, 1) / time_events.input_sets(whole, 1)
    assert times == pytest.approx(8, rel=0.1)
    l2.L2_cache_size *= 1000
    assert time_events.input_sets(whole, 1) == time_events.MAX_SETS


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_side, "inputs", partial(torch_side.inputs, device="cpu"))
    monkeypatch.setattr(verify, "outputs_of", partial(verify.outputs_of, device="cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


class Kernel:
    """Attention, right unless `blind`: then it does not see key 0."""

    def __init__(self, *, blind: bool) -> None:
        self.blind = blind

    def bind(self, problem: Problem) -> Launch:
        def launch() -> None:
            k = problem.inputs["k"].clone()
            if self.blind:
                k[:, 0] = 0
            found = attention({**problem.inputs, "k": k}, problem.workload, dtype=torch.float32)
            problem.outputs["o"][:] = found

        return launch


def test_a_case_is_tried_with_each_kind_of_inputs(on_cpu: None) -> None:
    right: Any = Kernel(blind=False)
    cases = [CheckCase(WORKLOAD), CheckCase(WORKLOAD, SINK_LAST)]
    found = verify.check_all(right, cases, 0, ("sink", "trained"))
    assert found.correct
    assert {case.workload for case in found.cases} == {WORKLOAD.key}
    assert [case.inputs for case in found.cases] == ["normal", SINK_LAST, "sink", "trained"]


def test_cases_differ_in_their_numbers_and_strides_and_are_off_zero(on_cpu: None) -> None:
    given: list[torch.Tensor] = []

    def bind(problem: Problem) -> Launch:
        given.append(problem.inputs["q"])
        return Kernel(blind=False).bind(problem)

    runner: Any = SimpleNamespace(bind=bind, subject="sm80:a")
    assert verify.check_all(runner, [CheckCase(WORKLOAD)] * 3, 0).correct
    assert len({float(q.float().sum()) for q in given}) == 3
    assert {q.is_contiguous() for q in given} == {False, True}
    assert all(float(q.float().mean()) == pytest.approx(0.25, abs=0.05) for q in given)


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


class Off:
    """A runner whose results are so many times as far off as those of another of this seed."""

    def __init__(self, times: float) -> None:
        self.times = times

    def bind(self, problem: Problem) -> Launch:
        expected = torch_side_of(problem.workload).expected(problem.workload, problem.inputs)
        noise = torch.randn(problem.outputs["o"].shape, generator=torch.Generator().manual_seed(1))
        found = expected["o"].exact + 0.1 * self.times * noise
        return lambda: {"o": found.to(torch.float16)}


def test_errors_are_over_those_of_flash_attention_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "get", lambda name: {"fa2": Off(1.0)}[name])
    runners = [Off(1.0), Off(1.4)]
    found = compare_inputs.errors_over_fa2(SMALL, "trained", 3, runners, device="cpu")
    assert found == pytest.approx((1.0, 1.4), rel=0.01)

    def refuse(*_: object) -> Launch:
        raise InvalidConfig("not called for this")

    monkeypatch.setattr(Off, "bind", refuse)
    found = compare_inputs.errors_over_fa2(SMALL, "trained", 3, runners, device="cpu")
    assert found == (None, None)
