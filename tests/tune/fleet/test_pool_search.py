"""Jobs over GPUs, without processes: order, errors, preferences, interruptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fa_tune.core.errors import GpusLost, InvalidConfig, ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.profile.base import Profiler
from fa_tune.tune.fleet.gpu import Interrupted
from fa_tune.tune.fleet.pool import Pool
from fa_tune.workers.supervisor import ItemResult, WorkerUnusable
from tests.tune.fakes import H200, Stages


class Pretended:
    """A GPU without processes."""

    def __init__(self, label: str, *, works: bool = False) -> None:
        self.label = label
        self.works = works
        self.device = replace(H200, uuid=label)
        self.worker_device = 0

    def profiler_here(self, profiler: Profiler) -> Profiler:
        return profiler

    def run_items(self, *_: object, **__: object) -> Any:
        if not self.works:
            raise ToolMissing("gone")
        return iter([ItemResult("probe", Outcome.OK, "a GPU")])


def test_results_come_in_the_order_of_the_jobs() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])

    def work(gpu: Any, shown: Any, job: int) -> int:
        time.sleep(0.01 * (5 - job))
        return job * job

    assert pool.each(range(5), work, Stages()) == [0, 1, 4, 9, 16]
    assert pool.each([], work, Stages()) == []


def test_the_error_of_a_job_ends_the_others() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])
    started: list[int] = []

    def work(gpu: Any, shown: Any, job: int) -> None:
        started.append(job)
        if job == 1:
            raise InvalidConfig("a reason")
        while True:  # until it is called off
            shown.advance("")
            time.sleep(0.001)

    with pytest.raises(InvalidConfig, match="a reason"):
        pool.each(range(4), work, Stages())
    assert sorted(started) == [0, 1]


def test_a_job_waits_for_the_gpu_it_prefers_while_there_are_others() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])
    where: dict[int, str] = {}
    barrier = threading.Barrier(2)

    def work(gpu: Any, shown: Any, job: int) -> None:
        where[job] = gpu.label
        if job < 2:
            barrier.wait(5)

    prefers: Callable[[int], str] = lambda job: "xy"[job % 2]  # noqa: E731
    pool.each(range(6), work, Stages(), prefers=prefers)
    assert (where[0], where[1]) == ("x", "y")


def test_what_was_interrupted_is_done_again_but_not_for_ever() -> None:
    pool = Pool([Pretended("x", works=True), Pretended("y", works=True)])
    tries: list[int] = []

    def work(gpu: Any, shown: Any, job: int) -> int:
        tries.append(job)
        if job == 1 and tries.count(1) < 3:
            raise Interrupted("the worker died")
        return job

    assert pool.each(range(3), work, Stages()) == [0, 1, 2]
    assert tries.count(1) == 3
    assert pool.lost == {}

    def never(gpu: Any, shown: Any, job: int) -> None:
        tries.append(job)
        raise Interrupted("the worker died")

    tries.clear()
    with pytest.raises(Interrupted, match="the worker died"):
        pool.each(range(1), never, Stages())
    assert len(tries) == 1 + 3


def test_the_dearest_jobs_begin() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])
    started: list[int] = []
    barrier = threading.Barrier(2)

    def work(gpu: Any, shown: Any, job: int) -> None:
        started.append(job)
        barrier.wait(5)

    pool.each(range(4), work, Stages(), cost=lambda job: (1.0, 4.0, 2.0, 3.0)[job])
    assert set(started[:2]) == {1, 3}


def test_a_lost_gpu_stays_lost() -> None:
    pool = Pool([Pretended("x"), Pretended("y", works=True)])

    def work(gpu: Any, shown: Any, job: int) -> str:
        if gpu.label == "x":
            raise WorkerUnusable("no device")
        time.sleep(0.02)  # time for the other to take one
        return str(gpu.label)

    progress = Stages()
    assert pool.each(range(4), work, progress) == ["y"] * 4
    assert pool.lost == {"x": "no device"}
    assert progress.warnings == ["x is lost: no device; another GPU takes over its job"]
    assert pool.each(range(2), lambda gpu, *_: gpu.label, progress) == ["y", "y"]


def test_the_last_gpu_lost_says_where_things_stand() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])

    def work(gpu: Any, shown: Any, job: int) -> None:
        raise WorkerUnusable(f"no device at {gpu.label}")

    with pytest.raises(GpusLost, match=r"all 2 GPUs are lost, the last one [xy]: no device"):
        pool.each(range(3), work, Stages())
    with pytest.raises(GpusLost):
        pool.each(range(3), work, Stages())


def test_a_gpu_that_cannot_even_be_asked_does_not_leave_others_waiting() -> None:
    class Odd(Pretended):
        def run_items(self, *_: object, **__: object) -> Any:
            raise OSError("no such pipe")

    pool = Pool([Odd("x"), Pretended("y", works=True)])

    def work(gpu: Any, shown: Any, job: int) -> None:
        if gpu.label == "x":
            raise WorkerUnusable("no device")
        time.sleep(0.05)

    with pytest.raises(OSError, match="no such pipe"):
        pool.each(range(6), work, Stages())


# Fewer than two GPUs ----------------------------------------------------------------------------


def test_one_gpu_works_in_the_callers_thread_and_in_order() -> None:
    def work(gpu: Any, shown: Any, job: int) -> tuple[str, int, threading.Thread]:
        return gpu.label, job, threading.current_thread()

    found = Pool([Pretended("x")]).each(range(3), work, Stages(), cost=float)
    assert found == [("x", job, threading.current_thread()) for job in range(3)]


def test_without_a_gpu_work_that_needs_none_is_done() -> None:
    pool = Pool()
    assert pool.each([1, 2], lambda _gpu, _shown, job: job + 1, Stages()) == [2, 3]
    assert pool.deal({"a": 1, "b": 2}) == [{"a": 1, "b": 2}]
    assert pool.deal({}) == []
    with pytest.raises(ToolMissing, match="no GPU found"):
        pool.each([1], lambda gpu, _shown, _job: gpu.run_items(), Stages())


def test_an_only_gpu_that_recovers_goes_on_and_one_that_does_not_is_lost() -> None:
    tries: list[int] = []

    def work(gpu: Any, shown: Any, job: int) -> int:
        tries.append(job)
        if len(tries) < 3:
            raise Interrupted("the worker died")
        return job

    assert Pool([Pretended("x", works=True)]).each([7], work, Stages()) == [7]
    tries.clear()
    with pytest.raises(GpusLost, match="x is lost: the worker died"):
        Pool([Pretended("x")]).each([7], work, Stages())
