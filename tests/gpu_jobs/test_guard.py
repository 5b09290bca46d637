"""What a job reports of its items, and how long each may be silent."""

import sys
import time
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune.core.errors import InvalidConfig
from fa_tune.core.jobs import KernelItem
from fa_tune.core.model import Outcome
from fa_tune.gpu import guard

LEAST_S = guard.HANG_LEAST_S


class _Report:
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float | None]] = []
        self.found: dict[str, Any] = {}

    def begin(self, item: str, timeout_s: float | None = None) -> None:
        self.begun.append((item, timeout_s))

    def done(self, item: str, value: Any) -> None:
        self.found[item] = value

    def failed(self, item: str, outcome: Outcome, reason: str) -> None:
        self.found[item] = outcome, reason


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Seconds that pass in a check, by its item; no GPU, of which the fourth is used."""
    now, used = [0.0], list[int]()
    monkeypatch.setattr(guard, "use_device", used.append)
    monkeypatch.setattr(guard, "runner_of", lambda item: item.subject.upper())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    yield now
    assert used == [3]


def checked(report: _Report, names: str, check: Any, **more: Any) -> None:
    items = {name: KernelItem(name) for name in names.split()}
    guard.check_runners(3, items, report, check, **more)  # type: ignore[arg-type]


def test_the_first_item_of_each_kind_has_the_whole_limit(clock: list[float]) -> None:
    """It computes what must come out of the others, too."""
    report = _Report()
    took_s = {"a1": 3.0, "a2": 0.0, "b1": 9.0, "a3": 3.0, "b2": 0.0, "a4": 0.0}

    def check(runner: Any, name: str) -> Any:
        clock[0] += took_s[name]
        return runner, name

    checked(report, " ".join(took_s), check, item_timeout_s=60.0, kind=lambda name: name[0])
    assert report.begun == [
        *(("a1", 60.0), ("a2", guard.HANG_TIMES * 3.0), ("b1", 60.0), ("a3", LEAST_S)),
        *(("b2", 60.0), ("a4", guard.HANG_TIMES * 3.0)),
    ]
    assert report.found == {name: (name.upper(), name) for name in took_s}


def test_without_a_limit_the_supervisors_holds(clock: list[float]) -> None:
    report = _Report()
    checked(report, "a b", lambda runner, name: name)
    assert report.begun == [("a", None), ("b", None)]


def test_what_is_refused_costs_its_item_alone(
    clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def runner_of(item: KernelItem) -> Any:
        if item.subject == "a":
            raise InvalidConfig("no such kernel")
        return item.subject

    def check(runner: Any, name: str) -> Any:
        if name == "b":
            raise InvalidConfig("no such problem")
        return f"right: {runner}"

    monkeypatch.setattr(guard, "runner_of", runner_of)
    report = _Report()
    checked(report, "a b c", check)
    assert report.found == {
        "a": (Outcome.REJECTED, "no such kernel"),
        "b": (Outcome.REJECTED, "no such problem"),
        "c": "right: c",
    }


@pytest.mark.parametrize(
    ("uuids", "visible", "handle"),
    [
        (["one", "two", "three"], None, 1),  # CUDA's third is the board's second
        (["one", "two", "three"], "2,1", 1),
        (["else"], None, "index 2"),
        (["else"], "2,1", None),  # it could be any
    ],
)
def test_a_gpu_is_the_same_for_nvml(
    uuids: list[str], visible: str | None, handle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NVMLError(Exception):
        pass

    def by_uuid(text: str) -> int:
        if text.removeprefix("GPU-") not in uuids or not text.startswith("GPU-"):
            raise NVMLError(text)
        return uuids.index(text.removeprefix("GPU-"))

    nvml = ModuleType("pynvml")
    nvml.__dict__.update(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetHandleByIndex=lambda index: f"index {index}",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    properties = {2: SimpleNamespace(uuid="two")}
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if handle is None:
        with pytest.raises(NVMLError):
            guard.nvml_handle(2)
    else:
        assert guard.nvml_handle(2) == handle
