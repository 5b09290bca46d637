"""The processes of a comparison: results in order, none left behind."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fa_tune.lab.processes import mapped
from tests.interrupts import interruptible
from tests.project_files import ROOT

# The first task is over at once, the others never.
BUSY = """
import contextlib, multiprocessing, time
from fa_tune.lab.processes import mapped
if __name__ == "__main__":
    with contextlib.closing(mapped(time.sleep, [0, 1e6, 1e6, 1e6], jobs=2, chunk=1)) as results:
        next(results)
        print(*(p.pid for p in multiprocessing.active_children()), flush=True)
        {then}
"""


def test_results_come_in_the_order_of_the_tasks() -> None:
    words = ["a", "bcd", "ef", ""]
    assert list(mapped(len, words, jobs=2, chunk=1)) == [1, 3, 2, 0]


def test_processes_begin_with_what_all_tasks_share(tmp_path: Path) -> None:
    found = mapped(os.path.abspath, ["x"], jobs=1, chunk=1, begin=os.chdir, common=(tmp_path,))
    assert list(found) == [str(tmp_path / "x")]


def test_ctrl_c_is_for_the_parent_alone() -> None:
    blocked = functools.partial(signal.pthread_sigmask, signal.SIG_BLOCK)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    (found,) = mapped(blocked, [()], jobs=1, chunk=1)
    assert signal.SIGINT in found
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


@pytest.mark.parametrize("interrupted", [False, True])
def test_nothing_is_left_of_tasks_that_nobody_waits_for(tmp_path: Path, interrupted: bool) -> None:
    script = tmp_path / "busy.py"
    script.write_text(BUSY.format(then="next(results)" if interrupted else "pass"))
    child = interruptible(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert child.stdout is not None
    workers = child.stdout.readline().split()
    assert len(workers) == 2
    if interrupted:
        os.killpg(child.pid, signal.SIGINT)  # as a terminal does
    _, err = child.communicate(timeout=60)
    assert err.count("Traceback") == interrupted, "that of the parent alone"
    assert not any(Path("/proc", worker).exists() for worker in workers)
