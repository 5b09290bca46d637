"""What a board does to be compared with others, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fa_tune.core.jobs import Reading
from fa_tune.core.workload import DType, Workload

if not TYPE_CHECKING:
    pytest.importorskip("torch", reason="torch is not installed: no jobs to test")

import torch

from fa_tune.gpu import telemetry
from fa_tune.gpu.jobs import calibrate, probe, time_events

WORKLOAD = Workload(1, 1, 1, 64, 64, 64, DType.FP16)
PAIR = {"workload": WORKLOAD.key, "pair": [{"subject": "sm80:a"}, {"subject": "sm80:b"}]}
KERNEL = {"subject": "sm80:x", "cubin": "x.cubin", "symbol": "x", "traits": "plain"}
SHARED = {"device": 0, "seed": 0}


class Spoken:
    """A report that remembers."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.values: dict[str, Any] = {}

    def begin(self, item: str, timeout_s: float | None = None) -> None:
        self.said.append(("begin", item))

    def done(self, item: str, value: Any) -> None:
        self.said.append(("done", item))
        self.values[item] = value

    def failed(self, item: str, outcome: object, reason: str) -> None:
        self.said.append((str(outcome), item))


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Who was sampled, in order; a takes 1 ms and b 2 ms."""
    taken: list[str] = []

    class Subject:
        def __init__(self, launches: list[str], samples: list[float]) -> None:
            self.name, self.samples = launches[0], samples

        def estimate(self) -> float:
            taken.append(f"prepare {self.name}")
            return 1.0

        def sample(self) -> float:
            taken.append(self.name)
            return {"sm80:a": 1e-3, "sm80:b": 2e-3}[self.name]

    def verify(
        device: int, items: Mapping[str, Any], seed: int, report: Spoken, **how: object
    ) -> None:
        for name in items:
            report.done(name, how)

    monkeypatch.setattr(time_events, "Subject", Subject)
    monkeypatch.setattr(time_events, "input_sets", lambda *_: 2)
    clock = iter(0.4 * n for n in range(1000))
    monkeypatch.setattr(calibrate.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(
        calibrate, "launchers", lambda item, problem: [item.subject] * len(problem.inputs)
    )
    monkeypatch.setattr(calibrate, "use_device", lambda index: None)
    monkeypatch.setattr(calibrate.verify, "verify_items", verify)
    monkeypatch.setattr(time_events, "make_inputs", partial(time_events.make_inputs, device="cpu"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    readings = iter(Reading(1e9 + n, 500.0, 40.0) for n in range(1000))
    monkeypatch.setattr(telemetry, "reader", lambda device: lambda: next(readings))
    return taken


def test_kernels_are_verified_before_the_pair_is_timed(order: list[str]) -> None:
    report = Spoken()
    calibrate.handle(SHARED, {"calibration": PAIR, "x": KERNEL, "y": KERNEL}, report)  # type: ignore[arg-type]
    assert report.said == [
        ("done", "x"),
        ("done", "y"),
        ("begin", "calibration"),
        ("done", "calibration"),
    ]


def test_kernels_are_verified_as_without_a_pair(order: list[str]) -> None:
    how = {"item_timeout_s": 9.0, "thorough": True}
    report = Spoken()
    shared = {**SHARED, **how, "verify_inputs": ["sink"]}
    calibrate.handle(shared, {"calibration": PAIR, "x": KERNEL}, report)  # type: ignore[arg-type]
    assert report.values["x"] == {**how, "inputs": ("sink",)}


def test_the_second_is_compared_with_the_first_before_and_after_it(order: list[str]) -> None:
    report = Spoken()
    calibrate.handle(SHARED, {"calibration": PAIR}, report)  # type: ignore[arg-type]
    assert order[:2] == ["prepare sm80:a", "prepare sm80:b"]
    a, b = "sm80:a", "sm80:b"
    taken = order[-(1 + 2 * calibrate.ROUNDS) :]
    assert taken == [a] + [b, a] * calibrate.ROUNDS
    assert len(order) == 2 + 2 * 2 + len(taken), "two pairs that count for nothing"
    value = report.values["calibration"]
    assert value["samples_s"] == [[1e-3] * calibrate.ROUNDS, [2e-3] * calibrate.ROUNDS]
    assert value["sm_clock_hz"] == pytest.approx(1e9, rel=1e-6)
    assert value["power_w"] == 500.0


def test_without_a_pair_nothing_is_timed(order: list[str]) -> None:
    report = Spoken()
    calibrate.handle(SHARED, {"x": KERNEL}, report)  # type: ignore[arg-type]
    assert report.said == [("done", "x")]
    assert order == []


@pytest.mark.parametrize(("total", "ends"), [(1024.0, "done"), (1023.0, "wrong_result")])
def test_a_board_that_adds_up_wrongly_does_not_work(
    monkeypatch: pytest.MonkeyPatch, total: float, ends: str
) -> None:
    monkeypatch.setattr(probe, "use_device", lambda index: None)
    monkeypatch.setattr(torch, "ones", lambda n, device: torch.full((1,), total))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "a board")
    report = Spoken()
    probe.handle({"device": 0}, {"probe": {}}, report)  # type: ignore[arg-type]
    assert [kind for kind, _ in report.said] == ["begin", ends]
