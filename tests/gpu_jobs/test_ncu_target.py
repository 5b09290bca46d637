"""What the program below ncu launches when, without a GPU."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fa_tune.core.jobs import KernelItem, ProfileJob, WorkloadItem
from fa_tune.gpu.jobs import ncu_target
from fa_tune.operations.base import Launch, Problem

SHORT, LONG = "b1_h2_kv2_q64_k64_d64_fp16_full", "b1_h2_kv2_q128_k128_d64_fp16_full"


class Told:
    """In place of a report, a GPU and a profiler: what happened, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[str] = []
        self.loaded = 0
        stand_ins: dict[str, Callable[..., Any]] = {
            "use_device": lambda _: None,
            "outputs_of": lambda workload: {},
            "runner_of": self.runner_of,
            "guarded": lambda _, name, action: action() or True,
            "profiler_start": lambda: self.events.append("open"),
            "profiler_stop": lambda: self.events.append("close"),
            "unload_modules": self.unload,
        }
        for name, stand_in in stand_ins.items():
            monkeypatch.setattr(ncu_target, name, stand_in)
        side = SimpleNamespace(inputs=lambda *_, **__: {})
        monkeypatch.setattr(ncu_target, "torch_side_of", lambda workload: side)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def runner_of(self, item: KernelItem) -> Any:
        def bind(problem: Problem) -> Callable[[], None]:
            self.loaded += 1
            told = f"{item.subject} {problem.workload.seq_len_q}"
            return lambda: self.events.append(f"{told} of {self.loaded}")

        return SimpleNamespace(bind=bind, versions={})

    def unload(self) -> None:
        self.loaded = 0

    def begin(self, item: str, timeout_s: float | None = None) -> None:
        pass

    def partial(self, item: str, value: object) -> None:
        pass

    def done(self, item: str, value: object) -> None:
        self.events.append(f"done {item}")

    @property
    def profiled(self) -> list[str]:
        """What was launched inside the window."""
        inside, found = False, []
        for event in self.events:
            inside = event == "open" or (inside and event != "close")
            if inside and not event.startswith(("open", "done")):
                found.append(event)
        return found


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def run(told: Told, *items: tuple[str, str], rounds: int = 1, seed: int = 0) -> None:
    made = {f"{key} {subject}": WorkloadItem(subject, workload=key) for key, subject in items}
    _, shared, raw = ProfileJob(items=made, device=0, rounds=rounds, seed=seed).request()
    ncu_target.handle(shared, raw, told)  # type: ignore[arg-type]


def test_each_is_launched_once_before_the_window_opens(told: Told) -> None:
    run(told, (SHORT, "sm80:a"), (SHORT, "sm80:b"), rounds=2)
    before = told.events[: told.events.index("open")]
    assert before == ["sm80:a 64 of 1", "sm80:b 64 of 2"]
    assert sorted(told.profiled) == sorted(2 * ["sm80:a 64 of 2", "sm80:b 64 of 2"])
    assert told.events[-2:] == [f"done {SHORT} sm80:a", f"done {SHORT} sm80:b"]


def test_a_single_round_has_one_kernel_loaded_at_a_time(told: Told) -> None:
    run(told, (SHORT, "sm80:a"), (SHORT, "sm80:b"), (LONG, "sm80:a"))
    assert sorted(told.profiled[:2]) == ["sm80:a 64 of 1", "sm80:b 64 of 1"]
    assert told.profiled[2:] == ["sm80:a 128 of 1"], "and none is left of the workload before"


@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_no_library_follows_itself_from_one_workload_to_the_next(
    told: Told, seed: int, rounds: int
) -> None:
    both = ("ref:fa2", "ref:cudnn")
    run(told, *((w, s) for w in (SHORT, LONG) for s in both), rounds=rounds, seed=seed)
    launched = [(e.split()[0], e.split()[1]) for e in told.profiled]
    assert len(launched) == 4 * rounds
    change = next(i for i, (_, length) in enumerate(launched) if length == "128")
    assert launched[change][0] != launched[change - 1][0]


def test_what_could_not_be_told_apart_is_left_to_the_next_process(told: Told) -> None:
    run(told, (SHORT, "ref:fa2"), (LONG, "ref:fa2"))
    assert told.profiled == ["ref:fa2 64 of 1"]
    assert f"done {LONG} ref:fa2" not in told.events


def test_a_users_kernel_is_profiled_if_it_is_right(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked: list[str] = []

    def passes(_: object, name: str, launch: Launch, __: object) -> bool:
        launch()
        checked.append(name)
        return not name.endswith("wrong")

    monkeypatch.setattr(ncu_target.FinalCheck, "passes", passes)
    run(told, (SHORT, "sm80:a"), (SHORT, "user:m:wrong"), (SHORT, "user:m:right"), rounds=2)
    assert sorted(checked) == [f"{SHORT} user:m:right", f"{SHORT} user:m:wrong"]
    assert {event.split()[0] for event in told.profiled} == {"sm80:a", "user:m:right"}
