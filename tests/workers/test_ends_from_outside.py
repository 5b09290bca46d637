"""Whoever is ended takes its children along."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from fa_tune.workers.main import EXIT_ORPHANED
from fa_tune.workers.protocol import Event, EventKind
from tests.interrupts import interruptible
from tests.workers.runs import NOISY_WRAPPER, TESTS, running, start, wait_until


def test_a_generator_closed_early_takes_the_child_along(tmp_path: Path) -> None:
    results = start({"a": "ok", "b": "hang"}, run_dir=tmp_path)
    assert next(results).item == "a"
    assert running(tmp_path)
    results.close()
    assert not running(tmp_path)


def test_an_error_in_a_callback_takes_the_child_along(tmp_path: Path) -> None:
    def explode(event: Event) -> None:
        if event.kind is EventKind.BEGIN:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        list(start({"a": "hang"}, on_event=explode, run_dir=tmp_path))
    assert not running(tmp_path)


PARENT = """
    import sys, tempfile
    from fa_tune.workers.supervisor import run_items
    tempfile.tempdir = {temporary!r}
    results = run_items(
        "job_handlers:work", {{}}, {{"a": {{"do": "ok"}}, "b": {{"do": {do!r}}}}},
        item_timeout_s=3600, wrapper={wrapper!r}, env={{"PYTHONPATH": {tests!r}}},
    )
    for result in results:
        print(result.item, flush=True)
"""


def start_parent(tmp_path: Path, do: str, wrapper: list[str]) -> subprocess.Popen[str]:
    """A supervisor in a process of its own, whose second item hangs."""
    temporary = tmp_path / "of-parent"
    temporary.mkdir()
    script = textwrap.dedent(PARENT).format(
        temporary=str(temporary), wrapper=wrapper, tests=str(TESTS), do=do
    )
    parent = interruptible(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(TESTS.parent)},
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "a\n"
    assert running(temporary)
    return parent


@pytest.mark.parametrize(
    "wrapper",
    [[], NOISY_WRAPPER, ["setsid", "-w"]],
    ids=["direct", "wrapped", "wrapped-in-another-session"],
)
def test_no_child_outlives_a_parent_killed_outright(tmp_path: Path, wrapper: list[str]) -> None:
    parent = start_parent(tmp_path, "hang", wrapper)
    parent.kill()
    parent.communicate()
    wait_until(lambda: not running(tmp_path / "of-parent"), patience_s=5)


def test_a_wrapper_orphaned_before_it_runs_does_not_start() -> None:
    command = [sys.executable, "-m", "fa_tune.workers.main", "--tied", "0", "echo", "running"]
    env = {**os.environ, "PYTHONPATH": str(TESTS.parent)}
    ended = subprocess.run(command, env=env, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (EXIT_ORPHANED, b"")


@pytest.mark.parametrize("wrapper", [[], NOISY_WRAPPER], ids=["direct", "wrapped"])
def test_ctrl_c_ends_the_children_and_is_raised(tmp_path: Path, wrapper: list[str]) -> None:
    parent = start_parent(tmp_path, "hang", wrapper)
    parent.send_signal(signal.SIGINT)
    _, errors = parent.communicate(timeout=10)
    assert parent.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert not running(tmp_path / "of-parent")
    assert list((tmp_path / "of-parent").iterdir()) == []


def test_a_second_ctrl_c_does_not_save_a_child_deaf_to_sigterm(tmp_path: Path) -> None:
    parent = start_parent(tmp_path, "hang_hard", [])
    time.sleep(0.3)
    parent.send_signal(signal.SIGINT)
    time.sleep(0.5)
    parent.send_signal(signal.SIGINT)
    parent.communicate(timeout=10)
    assert not running(tmp_path / "of-parent")
