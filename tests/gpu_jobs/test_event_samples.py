"""What a sample is: a launch or a run of launches, timed without what the host takes."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.gpu.jobs import time_events


class FakeGpu:
    """A GPU of 2 GHz on which a launch takes `host_s` to enqueue and a kernel 0.1 ms to run."""

    def __init__(self, host_s: float) -> None:
        self.host_s = host_s
        self.now_s = 0.0  # of the host
        self.free_s = 0.0  # when the GPU has done what was enqueued

    def sleep(self, cycles: int) -> None:
        self.free_s = max(self.free_s, self.now_s) + cycles / 2e9

    def launch(self) -> None:
        self.now_s += self.host_s
        self.free_s = max(self.free_s, self.now_s) + 1e-4

    def event(self, enable_timing: bool) -> Any:
        gpu = self

        class Event:
            def record(self) -> None:
                self.at_s = max(gpu.free_s, gpu.now_s)

            def query(self) -> bool:
                return self.at_s <= gpu.now_s

            def synchronize(self) -> None:
                gpu.now_s = max(gpu.now_s, self.at_s)

            def elapsed_time(self, end: Any) -> float:
                return float(1e3 * (end.at_s - self.at_s))

        return Event()


def subject_of(launch: Callable[[], None]) -> time_events.Subject:
    runner: Any = SimpleNamespace(bind=lambda problem: launch)
    problem: Any = None
    return time_events.Subject(runner, [problem])


@pytest.mark.parametrize("host_s", [1e-5, 1.5e-4, 1e-3])
def test_a_slow_host_is_not_timed(monkeypatch: pytest.MonkeyPatch, host_s: float) -> None:
    """A launch takes longer to enqueue than the GPU is kept busy: it would wait, and be timed."""
    gpu = FakeGpu(host_s)
    monkeypatch.setattr(torch.cuda, "_sleep", gpu.sleep)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    subject = subject_of(gpu.launch)
    assert subject.sample() == pytest.approx(1e-4)


def test_what_a_launch_takes_the_host_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(3e-5)
    monkeypatch.setattr(torch.cuda, "_sleep", gpu.sleep)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(time_events.time, "perf_counter", lambda: gpu.now_s)
    (subject := subject_of(gpu.launch)).estimate()
    assert subject.host_s == pytest.approx([3e-5] * 3)  # those that estimate


def test_a_host_that_is_always_late_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(1.0)
    monkeypatch.setattr(torch.cuda, "_sleep", gpu.sleep)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    assert subject_of(gpu.launch).sample() > 0.5


def test_a_sustained_sample_is_a_run_without_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(1e-5)
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    monkeypatch.setattr(time_events.time, "monotonic", lambda: gpu.now_s)
    subject = subject_of(gpu.launch)
    subject.sustain(0.25)
    assert subject.sample() == pytest.approx(1e-4, rel=1e-3)
    assert gpu.free_s >= 0.25
    assert len(subject.host_s) == pytest.approx(2500, abs=10)


def test_sustained_launches_are_captured_until_none_is_waited_for() -> None:
    assert time_events.burst_launches([20e-3, 15e-3]) == 1
    assert time_events.burst_launches([1e-3, 2e-5]) == 500
