"""What a sample is: a launch or a run of launches, timed without what the host takes."""

import contextlib
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.model import Outcome
from fa_tune.core.workload import DType, Workload

pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.gpu.jobs import time_events, verify
from fa_tune.operations.base import CheckCase, Launch, Problem
from fa_tune.operations.forward import torch_side
from fa_tune.operations.torch_side import outputs_of
from tests.tensors import attention

KERNEL_S = 1e-4


class FakeGpu:
    """A GPU of 2 GHz on which a launch takes `host_s` to enqueue and a kernel `KERNEL_S` to run; a
    graph takes as long to enqueue as a launch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, host_s: float) -> None:
        self.host_s = host_s
        self.now_s = 0.0  # of the host
        self.free_s = 0.0  # when the GPU has done what was enqueued
        self.captured: list[int] = []  # kernels of each graph
        self.capturing = False
        self.waits: list[tuple[Any, Any]] = []  # a stream, and the one that it waits for
        self.current, self.side = self.stream("current"), self.stream("side")
        for name, value in {
            "_sleep": self.sleep,
            "Event": self.event,
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: self.launch(self.captured[-1])),
            "graph": self.graph,
            "Stream": lambda: self.side,
            "current_stream": lambda: self.current,
            "stream": self.on_stream,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(time_events.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time_events.time, "perf_counter", lambda: self.now_s)

    @property
    def subject(self) -> time_events.Subject:
        """A kernel on it."""
        runner: Any = SimpleNamespace(bind=lambda problem: self.launch)
        problem: Any = None
        return time_events.Subject(runner, [problem])

    def stream(self, name: str) -> Any:
        return SimpleNamespace(
            wait_stream=lambda other: self.waits.append((name, other.name)), name=name
        )

    @contextlib.contextmanager
    def on_stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def sleep(self, cycles: int) -> None:
        self.free_s = max(self.free_s, self.now_s) + cycles / 2e9

    def launch(self, kernels: int = 1) -> None:
        self.now_s += self.host_s
        if self.capturing:
            self.captured[-1] += kernels
        else:
            self.free_s = max(self.free_s, self.now_s) + kernels * KERNEL_S

    @contextlib.contextmanager
    def graph(self, graph: Any, stream: Any) -> Iterator[None]:
        assert graph is not None
        assert stream is self.current is self.side
        self.captured.append(0)
        self.capturing = True
        yield
        self.capturing = False

    def event(self, enable_timing: bool) -> Any:
        assert enable_timing
        gpu = self

        class Event:
            def record(self) -> None:
                self.at_s = max(gpu.free_s, gpu.now_s)

            def query(self) -> bool:
                return self.at_s <= gpu.now_s

            def synchronize(self) -> None:
                gpu.now_s = max(gpu.now_s, self.at_s)

            def elapsed_time(self, end: Any) -> float:
                assert end.query(), "it is known once the GPU has come that far"
                return float(1e3 * (end.at_s - self.at_s))

        return Event()


@pytest.mark.parametrize("host_s", [1e-5, 1.5e-4, 1e-3])
def test_a_slow_host_is_not_timed(monkeypatch: pytest.MonkeyPatch, host_s: float) -> None:
    """A launch takes longer to enqueue than the GPU is kept busy: it would wait, and be timed."""
    assert FakeGpu(monkeypatch, host_s).subject.sample() == pytest.approx(KERNEL_S)


@pytest.mark.parametrize("launches", [1, 2, 7])
def test_a_sample_of_a_graph_is_what_each_of_its_launches_takes(
    monkeypatch: pytest.MonkeyPatch, launches: int
) -> None:
    gpu = FakeGpu(monkeypatch, 1e-5)
    subject = gpu.subject
    subject.capture(launches)
    assert gpu.captured == [launches]
    assert gpu.free_s == pytest.approx(1e-5 + KERNEL_S), "launched once before, captured then"
    assert len(subject.host_s) == 1, "a capture launches nothing"
    assert gpu.waits == [("side", "current"), ("current", "side")]
    assert subject.sample() == pytest.approx(KERNEL_S)
    subject.sustain(20 * launches * KERNEL_S)
    assert subject.sample() == pytest.approx(KERNEL_S, rel=0.01)
    subject.launch_singly()
    assert subject.sample() == pytest.approx(KERNEL_S, rel=0.01)


def test_what_a_launch_takes_the_host_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    (subject := FakeGpu(monkeypatch, 3e-5).subject).estimate()
    assert subject.host_s == pytest.approx([3e-5] * 3)  # those that estimate


def test_a_host_that_is_always_late_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    assert FakeGpu(monkeypatch, 1.0).subject.sample() > 0.5


@pytest.mark.parametrize("n", [1, 8, 250])
def test_a_sustained_sample_is_a_run_without_gaps(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """Of as many launches as fill the time, and a few that are ahead; `n` of them take it."""
    gpu = FakeGpu(monkeypatch, 1e-9)
    subject = gpu.subject
    subject.sustain(n * KERNEL_S)
    assert subject.sample() == pytest.approx(KERNEL_S, rel=1e-4)
    assert 0 <= len(subject.host_s) - n - time_events.BURSTS_AHEAD <= 1
    assert gpu.free_s == pytest.approx(len(subject.host_s) * KERNEL_S, rel=1e-3)


@pytest.mark.parametrize(
    ("estimates_s", "launches", "burst"),
    [
        ([20e-3, 15e-3], 1, 1),
        ([1e-3, 2e-5], 25, 500),
        ([3e-4, 9e-4], 2, 34),
        ([5e-4], 1, 20),
        ([], 1, 1),
    ],
)
def test_as_many_launches_as_the_fastest_needs(
    estimates_s: list[float], launches: int, burst: int
) -> None:
    """For half a millisecond of a graph and ten of a burst, rounded up."""
    assert time_events.graph_launches(estimates_s) == launches
    assert time_events.burst_launches(estimates_s) == burst


def test_an_estimate_is_the_shortest_of_three_after_a_launch_of_each_input(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(monkeypatch, 1e-6)
    taken = iter([9, 9, 9, 3, 2, 5])
    runner: Any = SimpleNamespace(bind=lambda problem: lambda: gpu.launch(next(taken)))
    problems: Any = [0, 1, 2, 3]
    assert time_events.Subject(runner, problems).estimate() == pytest.approx(2 * KERNEL_S)


def test_inputs_rotate(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, used = FakeGpu(monkeypatch, 1e-6), list[int]()

    def launch(problem: int) -> None:
        used.append(problem)
        gpu.launch()

    runner: Any = SimpleNamespace(bind=lambda problem: partial(launch, problem))
    problems: Any = [0, 1, 2]
    subject = time_events.Subject(runner, problems)
    for _ in range(5):
        subject.sample()
    assert used == [0, 1, 2, 0, 1]


def _unwritten(problem: Problem) -> Launch:
    """A kernel that writes no row that sees no key: what must be zero there is not its doing."""

    def launch() -> None:
        problem.outputs["o"][:, -problem.workload.seq_len_kv :] = attention(
            problem.inputs, problem.workload, dtype=torch.float32
        )[:, -problem.workload.seq_len_kv :]

    return launch


def test_rows_that_nobody_writes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a check outputs hold what no kernel may leave: not zeros, which some rows must be."""
    workload = Workload(1, 1, 1, 96, 64, 64, DType.FP16, causal=True, bottom_right=True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch_side, "inputs", partial(torch_side.inputs, device="cpu"))
    monkeypatch.setattr(verify, "outputs_of", partial(outputs_of, device="cpu"))
    runner: Any = SimpleNamespace(bind=_unwritten, subject="sm80:a")
    assert not verify.check(runner, CheckCase(workload), 1).ok
    inputs = torch_side.inputs(workload, seed=1)
    problem = Problem(workload, inputs, outputs_of(workload, fill=0.0, device="cpu"))
    failures: list[tuple[str, Outcome, bool]] = []
    report: Any = SimpleNamespace(
        failed=lambda name, outcome, reason: failures.append((name, outcome, bool(reason)))
    )

    def right() -> None:
        problem.outputs["o"][:] = attention(inputs, workload, dtype=torch.float32)

    def refusing() -> None:
        raise InvalidConfig("no such mask")

    check = time_events.FinalCheck(problem)
    launches = {"a": _unwritten(problem), "b": right, "c": refusing}
    assert [name for name, one in launches.items() if check.passes(name, one, report)] == ["b"]
    assert failures == [("a", Outcome.WRONG_RESULT, True), ("c", Outcome.REJECTED, True)]


def test_clocks_come_up_before_the_first_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, product, draw = FakeGpu(monkeypatch, 1e-6), torch.mm, torch.randn

    def randn(*size: int, device: str, dtype: torch.dtype) -> torch.Tensor:
        assert (device, dtype) == ("cuda", torch.float16)
        return draw(*size, device="meta")

    monkeypatch.setattr(torch, "randn", randn)
    monkeypatch.setattr(torch, "mm", lambda a, b: (product(a, b), gpu.launch()))
    time_events.warm_up()
    assert 0 < gpu.now_s - time_events.WARM_UP_S < 0.01
