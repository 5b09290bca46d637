"""Workers that somebody else ends: killed from outside, or no longer wanted by another thread."""

from __future__ import annotations

import threading
import time
from contextvars import copy_context
from pathlib import Path

from fa_tune.core.model import Outcome
from fa_tune.workers.supervisor import CALLED_OFF, CalledOff
from tests.workers.runs import start


def test_what_crashed_by_itself_is_not_tried_again(tmp_path: Path) -> None:
    doing = {"bad": "segfault", "worse": "leave", "good": "ok"}
    results = list(start(doing, retry_after_sigkill=True, run_dir=tmp_path / "runs"))
    assert [r.outcome for r in results] == [Outcome.CRASHED, Outcome.CRASHED, Outcome.OK]
    assert len(list((tmp_path / "runs").iterdir())) == len(doing)
    doing = {"before": "ok", "killed": "oom", "after": "ok"}
    results = list(start(doing, retry_after_sigkill=True))
    assert [r.item for r in results] == ["before", "killed", "after"]
    assert [r.outcome for r in results] == [Outcome.OK, Outcome.CRASHED, Outcome.OK]
    assert results[1].reason == "killed by SIGKILL (out of memory?)"


def test_work_that_is_called_off_ends_with_its_process() -> None:
    called_off = threading.Event()
    ended: list[BaseException] = []

    def work() -> None:
        CALLED_OFF.set(called_off)
        try:
            list(start({"long": "hang"}))
        except CalledOff as error:
            ended.append(error)

    thread = threading.Thread(target=copy_context().run, args=(work,))
    thread.start()
    time.sleep(0.5)
    called_off.set()
    thread.join(10)
    assert not thread.is_alive()
    assert len(ended) == 1
    assert CALLED_OFF.get() is None, "of that thread alone"
