"""Workers that never get anywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fa_tune.core.model import Outcome
from fa_tune.workers.supervisor import WorkerUnusable, run_items
from tests.workers.runs import TESTS, run, start


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        ("job_handlers:no_such_function", "AttributeError"),
        ("job_handlers:not_callable", "is not a function"),
        ("no_such_module:work", "No module named 'no_such_module'"),
        ("broken:work", "libcuda.so.1: cannot open"),
    ],
)
def test_a_handler_that_cannot_be_loaded(tmp_path: Path, handler: str, reason: str) -> None:
    (tmp_path / "broken.py").write_text("raise ImportError('libcuda.so.1: cannot open')")
    path = {"PYTHONPATH": os.pathsep.join([str(TESTS), str(tmp_path)])}
    runs = tmp_path / "runs"
    items = {"a": {"do": "ok"}, "b": {"do": "ok"}}
    with pytest.raises(WorkerUnusable, match=reason) as caught:
        list(run_items(handler, {}, items, item_timeout_s=9, env=path, run_dir=runs))
    assert caught.value.exit_status == 3
    assert "\n" not in str(caught.value)
    (only,) = runs.iterdir()  # trying again would change nothing
    assert "Traceback" in (only / "stderr.log").read_text()


def test_death_at_import_is_tried_twice(tmp_path: Path) -> None:
    (tmp_path / "fatal.py").write_text("import os\nos._exit(11)")
    path, runs = {"PYTHONPATH": str(tmp_path)}, tmp_path / "runs"
    with pytest.raises(WorkerUnusable, match="cannot start: exited with status 11"):
        list(run_items("fatal:x", {}, {"a": {}}, item_timeout_s=9, env=path, run_dir=runs))
    assert len(list(runs.iterdir())) == 2


def test_death_before_the_first_item_is_forgiven_once(tmp_path: Path) -> None:
    once = {"times": 1, "counter": str(tmp_path / "once")}
    assert run({"a": "ok"}, "die_first", shared=once)["a"].outcome is Outcome.OK
    always = {"times": 99, "counter": str(tmp_path / "always")}
    with pytest.raises(WorkerUnusable, match="stderr ends: no CUDA-capable device is detected"):
        run({"a": "ok"}, "die_first", shared=always)


def test_results_come_before_the_worker_is_found_unusable(tmp_path: Path) -> None:
    shared = {"marker": str(tmp_path / "marker")}
    results = start({"a": "die_between", "b": "ok"}, "good_once", shared=shared)
    assert next(results).item == "a"
    with pytest.raises(WorkerUnusable, match="GPU has fallen off the bus"):
        next(results)


def test_a_hang_at_startup() -> None:
    with pytest.raises(WorkerUnusable, match=r"cannot start: silent for 0\.5 s"):
        run({"a": "ok"}, "hang_first", start_timeout_s=0.5)
    results = run({"a": "ok"}, "hang_at_exit", exit_timeout_s=0.5)
    assert results["a"].outcome is Outcome.OK
