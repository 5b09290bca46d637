"""Several workloads measured at once where a process is dear, with the same results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fa_tune.core.model import Attempt
from fa_tune.core.workload import Workload
from fa_tune.profile.base import MeasurePlan, OnStep
from fa_tune.tune import dispatch
from fa_tune.tune.fleet.gpu import WorkerGpu
from fa_tune.tune.fleet.pool import Pool
from fa_tune.tune.flow import search
from fa_tune.tune.session import Session
from tests.tune import fakes
from tests.tune.conftest import World
from tests.tune.fakes import H200, FakeProfiler
from tests.tune.recorded import WORKLOAD

LENGTHS = (512, 1024, 2048)
DEFAULT, FAST, NEAR, OTHER = fakes.keys(4)


def by_length(subject: str, workload: Workload) -> float:
    """Another config is the fastest at another length; close to it is a second one."""
    order = {512: (FAST, NEAR), 1024: (NEAR, DEFAULT), 2048: (OTHER, FAST)}[workload.seq_len_q]
    return {order[0]: 1e-3, order[1]: 1.015e-3}.get(subject, 2e-3)


class Together(FakeProfiler):
    """Remembers which workloads were measured at once."""

    def __init__(self, *, interrupt_after: int | None = None, method: str = "ncu") -> None:
        super().__init__(by_length, interrupt_after=interrupt_after, method=method)
        self.at_once: list[list[int]] = []

    def measure_all(self, plans: Sequence[MeasurePlan], on_step: OnStep) -> Iterator[Attempt]:
        self.at_once.append([plan.workload.seq_len_q for plan in plans])
        return super().measure_all(plans, on_step)


def chosen(world: World) -> dict[int, str]:
    result = search(world.options(*LENGTHS), world.progress)
    return {r.workload.seq_len_q: r.decision.chosen.subject for r in result.results if r.decision}


def test_each_stage_is_one_of_all_workloads(world: World) -> None:
    world.profiler = profiler = Together()
    chosen(world)
    assert profiler.at_once[0] == list(LENGTHS), "everyone once"
    assert profiler.at_once[1] == list(LENGTHS), "the finalists"
    assert len(profiler.at_once) <= 3, "and perhaps those whose order is open"
    names = [name for name, _ in world.progress.stages if name.startswith("measure")]
    assert names[0] == "measure 3 workloads"


def test_the_choices_are_those_of_one_after_another(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.profiler = Together()
    at_once = chosen(world)
    monkeypatch.setattr(dispatch, "AT_ONCE", 1)
    world.profiler = one_by_one = Together()
    world.folder = tmp_path / "again"
    assert chosen(world) == at_once
    assert {len(lengths) for lengths in one_by_one.at_once} == {1}
    assert len(set(at_once.values())) == 3


def test_events_measure_one_workload_after_another(world: World) -> None:
    world.profiler = profiler = Together(method="events")
    chosen(world)
    assert profiler.at_once == [[n] for n in LENGTHS]


@pytest.mark.parametrize("after", [2, 8, 17, 20])
def test_interrupted_it_goes_on_from_what_was_measured(world: World, after: int) -> None:
    world.profiler = whole = Together()
    expected = chosen(world)
    n_samples = len(whole.measured)
    world.folder = world.folder / "again"
    world.profiler = first = Together(interrupt_after=after)
    with pytest.raises(KeyboardInterrupt):
        chosen(world)
    assert first.plans
    world.profiler = second = Together()
    assert chosen(world) == expected
    assert len(second.measured) == n_samples - after


@pytest.mark.parametrize(
    ("sizes", "wanted", "n_parts", "expected"),
    [
        ([18, 18, 18, 18], ["", "", "", ""], 2, [36, 36]),
        ([18, 18, 18], ["", "", ""], 4, [18, 18, 18]),
        ([30, 10, 10, 10], ["", "", "", ""], 2, [30, 30]),
        ([10, 10, 10, 10], ["A", "B", "A", "B"], 2, [20, 20]),
        ([1, 1, 1, 9], ["", "", "", ""], 2, [3, 9]),
        ([2, 2, 2], ["A", "", "A"], 2, [2, 4]),
        ([], [], 2, []),
    ],
)
def test_parts_are_of_nearly_the_same_size(
    sizes: list[int], wanted: list[str], n_parts: int, expected: list[int]
) -> None:
    parts = dispatch.dealt(sizes, wanted, n_parts)
    assert sorted(n for part in parts for n in part) == list(range(len(sizes)))
    assert sorted(sum(sizes[n] for n in part) for part in parts) == sorted(expected)
    for gpu in set(wanted) - {""}:
        holding = [part for part in parts if any(wanted[n] == gpu for n in part)]
        assert len(holding) == 1, "what one GPU measured before stays together"


@pytest.mark.parametrize(
    ("n_jobs", "n_gpus", "n_parts"), [(3, 1, 1), (12, 1, 1), (13, 1, 2), (24, 2, 2), (25, 2, 4)]
)
def test_a_process_takes_no_more_than_it_should(
    tmp_path: Path, n_jobs: int, n_gpus: int, n_parts: int
) -> None:
    """Of 8 variants a job: 96 at once, on each of the GPUs as often."""
    pool = Pool([WorkerGpu(f"GPU {n}", H200) for n in range(n_gpus)])
    session = fakes.session(tmp_path, machine=replace(fakes.machine(tmp_path), pool=pool))
    parts: list[int] = []

    def work(_: Session, part: Sequence[int]) -> Sequence[int]:
        parts.append(len(part))
        return part

    found = dispatch.run_some_on_gpus(
        session, range(n_jobs), work, workload=lambda _: WORKLOAD, size=lambda _: 8
    )
    assert found == list(range(n_jobs))
    assert (len(parts), sum(parts)) == (n_parts, n_jobs)
    assert max(parts) <= 12
