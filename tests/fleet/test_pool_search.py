"""Jobs over boards, without processes: order, errors, preferences, interruptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fa_tune.core.errors import BoardsLost, InvalidConfig, ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.fleet.gpu import Interrupted
from fa_tune.fleet.pool import Pool
from fa_tune.tune.profilers import Measured
from fa_tune.workers.supervisor import ItemResult, WorkerUnusable
from tests.tune.fakes import H200, Stages


class Pretended:
    """A board without processes."""

    def __init__(self, label: str, *, works: bool = False) -> None:
        self.label = label
        self.works = works
        self.device = replace(H200, uuid=label)

    def measured(self, measured: Measured) -> Measured:
        return measured

    def run_items(self, *_: object, **__: object) -> Any:
        if not self.works:
            raise ToolMissing("gone")
        return iter([ItemResult("probe", Outcome.OK, "a board")])


def test_results_come_in_the_order_of_the_jobs() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])

    def work(board: Any, shown: Any, job: int) -> int:
        time.sleep(0.01 * (5 - job))
        return job * job

    assert pool.each(range(5), work, Stages()) == [0, 1, 4, 9, 16]
    assert pool.each([], work, Stages()) == []


def test_the_error_of_a_job_ends_the_others() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])
    started: list[int] = []

    def work(board: Any, shown: Any, job: int) -> None:
        started.append(job)
        if job == 1:
            raise InvalidConfig("a reason")
        while True:  # until it is called off
            shown.advance("")
            time.sleep(0.001)

    with pytest.raises(InvalidConfig, match="a reason"):
        pool.each(range(4), work, Stages())
    assert sorted(started) == [0, 1]


def test_a_job_waits_for_the_board_it_prefers_while_there_are_others() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])
    where: dict[int, str] = {}
    barrier = threading.Barrier(2)

    def work(board: Any, shown: Any, job: int) -> None:
        where[job] = board.label
        if job < 2:
            barrier.wait(5)

    prefers: Callable[[int], str] = lambda job: "xy"[job % 2]  # noqa: E731
    pool.each(range(6), work, Stages(), prefers=prefers)
    assert (where[0], where[1]) == ("x", "y")


def test_what_was_interrupted_is_done_again_but_not_for_ever() -> None:
    pool = Pool([Pretended("x", works=True), Pretended("y", works=True)])
    tries: list[int] = []

    def work(board: Any, shown: Any, job: int) -> int:
        tries.append(job)
        if job == 1 and tries.count(1) < 3:
            raise Interrupted("the worker died", (), "")
        return job

    assert pool.each(range(3), work, Stages()) == [0, 1, 2]
    assert tries.count(1) == 3
    assert pool.lost == {}

    def never(board: Any, shown: Any, job: int) -> None:
        raise Interrupted("the worker died", (), "")

    with pytest.raises(Interrupted, match="the worker died"):
        pool.each(range(1), never, Stages())


def test_a_lost_board_stays_lost() -> None:
    pool = Pool([Pretended("x"), Pretended("y", works=True)])

    def work(board: Any, shown: Any, job: int) -> str:
        if board.label == "x":
            raise WorkerUnusable("no device", (), "")
        time.sleep(0.02)  # time for the other to take one
        return str(board.label)

    progress = Stages()
    assert pool.each(range(4), work, progress) == ["y"] * 4
    assert pool.lost == {"x": "no device"}
    assert progress.warnings == ["x is lost: no device; another board takes over its job"]
    assert pool.each(range(2), lambda board, *_: board.label, progress) == ["y", "y"]


def test_the_last_board_lost_says_where_things_stand() -> None:
    pool = Pool([Pretended("x"), Pretended("y")])

    def work(board: Any, shown: Any, job: int) -> None:
        raise WorkerUnusable(f"no device at {board.label}", (), "")

    with pytest.raises(BoardsLost, match=r"all 2 boards are lost, the last one [xy]: no device"):
        pool.each(range(3), work, Stages())
    with pytest.raises(BoardsLost):
        pool.each(range(3), work, Stages())


def test_a_board_that_cannot_even_be_asked_does_not_leave_others_waiting() -> None:
    class Odd(Pretended):
        def run_items(self, *_: object, **__: object) -> Any:
            raise OSError("no such pipe")

    pool = Pool([Odd("x"), Pretended("y", works=True)])

    def work(board: Any, shown: Any, job: int) -> None:
        if board.label == "x":
            raise WorkerUnusable("no device", (), "")
        time.sleep(0.05)

    with pytest.raises(OSError, match="no such pipe"):
        pool.each(range(6), work, Stages())
