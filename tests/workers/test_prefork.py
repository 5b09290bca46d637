"""Workers that are started before there is work for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fa_tune.core.model import Outcome
from fa_tune.workers.prefork import PREFORK, get_ready, preforked_workers, warm_up
from fa_tune.workers.protocol import ProcessRef
from tests.workers.runs import TESTS, run, wait_until


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> str:
    """What lets a waiting worker find the handlers of the tests."""
    found = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    monkeypatch.setenv("PYTHONPATH", found)
    return found


def values(items: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Values or outcomes by item."""
    found = run(items, **options).values()
    return {r.item: r.value if r.outcome is Outcome.OK else r.outcome for r in found}


def pids(items: int) -> list[int]:
    """Which process did each of several jobs."""
    return [values({"a": "ok"})["a"]["pid"] for _ in range(items)]


def test_every_job_has_a_process_of_its_own_and_the_next_one_waits() -> None:
    with preforked_workers(()):
        warm_up()
        prefork = PREFORK.get()
        assert prefork is not None
        first = prefork._waiting
        found = pids(3)
        assert first is not None
        assert found[0] == first.pid
        assert len(set(found)) == 3
        last = prefork._waiting
    assert last is not None
    assert last.returncode is not None, "nothing is left waiting"
    assert PREFORK.get() is None


def test_no_other_waits_where_one_is_enough() -> None:
    with preforked_workers((), only_one=True):
        warm_up()
        prefork = PREFORK.get()
        assert prefork is not None
        first = prefork._waiting
        found = pids(2)
        assert first is not None
        assert found[0] == first.pid
        assert found[1] != first.pid
        assert prefork._waiting is None


def test_a_waiting_worker_that_died_costs_nothing() -> None:
    with preforked_workers(()):
        warm_up()
        prefork = PREFORK.get()
        assert prefork is not None
        assert prefork._waiting is not None
        prefork._waiting.kill()
        prefork._waiting.wait()
        assert pids(1)


def test_the_environment_of_a_job_reaches_a_waiting_worker() -> None:
    with preforked_workers(()):
        warm_up()
        found = values({"a": "visible"}, env={"CUDA_VISIBLE_DEVICES": "GPU-7"})
    assert found == {"a": "GPU-7"}


def test_a_crash_fails_its_item_and_the_next_worker_takes_over() -> None:
    with preforked_workers(()):
        warm_up()
        found = values({"a": "ok", "b": "segfault", "c": "ok"})
    assert found["b"] is Outcome.CRASHED
    assert found["a"]["pid"] != found["c"]["pid"]


def test_a_module_that_cannot_be_loaded_is_the_jobs_affair() -> None:
    with preforked_workers(("no.such.module", "json")):
        warm_up()
        assert pids(1)


def test_a_waiting_worker_prepares_while_it_imports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    done = tmp_path / "done"
    (tmp_path / "late.py").write_text("import time\nwhile True: time.sleep(0.01)\n")
    (tmp_path / "own.py").write_text(
        "import os, pathlib\n"
        "def prepare(device):\n"
        "    pathlib.Path(os.environ['DONE']).write_text(str(device))\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), path]))
    with preforked_workers(("late",)):
        get_ready("own:prepare", {"DONE": str(done)}, 3)
        wait_until(lambda: done.exists() and bool(done.read_text()))
    assert done.read_text() == "3"


def test_what_cannot_be_prepared_is_the_jobs_affair() -> None:
    with preforked_workers(()):
        get_ready("no.such.module:prepare", {}, 0)
        get_ready("json:loads", {}, 0)
        prefork = PREFORK.get()
        assert prefork is not None
        waiting = prefork._waiting
        assert waiting is not None
        assert pids(1) == [waiting.pid]


def test_a_waiting_worker_dies_with_whom_it_waits_for() -> None:
    code = (
        "import os, signal\n"
        "from fa_tune.workers.prefork import PREFORK, preforked_workers, warm_up\n"
        "with preforked_workers(()):\n"
        "    warm_up()\n"
        "    print(PREFORK.get()._waiting.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(done.stdout)
    wait_until(lambda: ProcessRef.of(pid) is None)
