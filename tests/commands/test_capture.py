"""`fa-tune capture`: programs as they are, whatever becomes of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fa_tune.store.capture.schema import Capture, load
from tests.commands.console import Console
from tests.project_files import ROOT

pytest.importorskip("torch", reason="torch is not installed: nothing to capture")

PROGRAM = """
import os, subprocess, sys, time
import torch
from torch.multiprocessing import get_context

def attend(n):
    q = torch.ones(1, 2, 8, 16, dtype=torch.bfloat16)
    for _ in range(n):
        torch.nn.functional.scaled_dot_product_attention(q, q, q)

if __name__ == "__main__":
    what = sys.argv[1]
    attend(1)
    if what == "children":
        for kind, n in (("fork", 10), ("spawn", 100)):
            child = get_context(kind).Process(target=attend, args=(n,))
            child.start()
            child.join()
        code = "import sys; sys.argv[1] = ''; from program import attend; attend(1000)"
        subprocess.run([sys.executable, "-c", code, ""], check=True)
    if what == "fails":
        print("on stdout")
        sys.exit(7)
    if what in ("killed", "waits"):
        print("waiting", flush=True)
        time.sleep(60)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    (tmp_path / "program.py").write_text(PROGRAM)
    return [sys.executable, str(tmp_path / "program.py")]


def run(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    path = os.pathsep.join((str(ROOT), str(folder), more.pop("path", "")))
    return subprocess.Popen(
        [sys.executable, "-m", "fa_tune", "capture", "--out", str(folder / "a.json"), "--", *words],
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder), **more},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def runs(found: Capture) -> int:
    return sum(usage.runs for usage in found.usages)


def test_every_process_is_in_one_file(tmp_path: Path, program: list[str]) -> None:
    done = run(tmp_path, *program, "children")
    _, err = done.communicate()
    found = load(tmp_path / "a.json")
    assert (done.returncode, found.exit_status) == (0, 0), err
    assert runs(found) == 1111
    assert len(found.usages) == 1, "one problem, however many processes"
    assert all(process.ended for process in found.processes)
    assert not [*tmp_path.rglob("*.part.json")]


def test_a_program_that_fails(tmp_path: Path, program: list[str]) -> None:
    """Its status and its standard output are its own, and its own sitecustomize is run."""
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys; sys.stdout.write('own first\\n')\n")
    done = run(tmp_path, *program, "fails", path=str(folder))
    out, _ = done.communicate()
    assert (done.returncode, out.splitlines()[-1]) == (7, "on stdout")
    assert out.count("own first") >= 1
    found = load(tmp_path / "a.json")
    assert (found.exit_status, runs(found)) == (7, 1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_program_that_is_ended(
    tmp_path: Path, program: list[str], number: signal.Signals
) -> None:
    """By a signal to it alone, or passed on by us; what was flushed is kept."""
    words = ["sh", "-c", 'echo $$; exec "$@"', "sh", *program, "waits"]
    done = run(tmp_path, *words)
    assert done.stdout is not None
    pid = int(done.stdout.readline())
    assert done.stdout.readline() == "waiting\n"
    while not any(runs(load(part)) for part in tmp_path.rglob("*.part.json")):
        assert done.poll() is None
        time.sleep(0.05)
    if number == signal.SIGTERM:
        done.send_signal(number)
    else:
        os.kill(pid, number)
    done.communicate(timeout=60)
    found = load(tmp_path / "a.json")
    assert runs(found) == 1
    assert found.exit_status in (-number, 128 + number, 1)
    assert done.returncode == (found.exit_status if found.exit_status > 0 else 128 + number)
    assert found.processes[0].ended == (number == signal.SIGINT)


def test_what_cannot_be_run_or_written(console: Console, tmp_path: Path) -> None:
    out = str(tmp_path / "a.json")
    missing = console("capture", "--out", out, "--", str(tmp_path / "no-such-program"))
    assert missing.status == 3
    assert len(missing.lines) == 1
    assert not Path(out).exists()
    assert console("capture", "--out", "/proc/none/a.json", "--", "true").status == 2
    assert console("capture", "--out", out).status == 2
    assert console("capture", "--keep-inputs", "-1", "--", "true").status == 2


def test_a_program_without_torch(console: Console, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    done = console("capture", "--out", str(out), "sh", "-c", "exit 5", "--out", "x")
    assert done.status == 5
    found = load(out)
    assert (found.usages, found.command[-2:]) == ((), ("--out", "x"))
    assert found.notes
