"""The compiler processes: what a crash, a hang or Ctrl-C costs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from fa_tune.build import pool
from fa_tune.build.pool import compile_all, ended_under
from fa_tune.build.worker import Compilation, CompileJob
from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Outcome
from tests.interrupts import interruptible

ROOT = Path(__file__).resolve().parents[2]

_MISBEHAVING = """
import os, signal, sys, time
from fa_tune.build import worker as compile_worker
from fa_tune.core.model import Outcome
compile_worker.ORPHAN_GRACE_S = 0
compile = compile_worker.compile_job
def compile_job(job):
    word = job.source.split()[0]
    if word == "SEGFAULT":
        os.kill(os.getpid(), signal.SIGSEGV)
    if word == "CACHE":
        return compile_worker.Compilation(Outcome.OK, os.environ.get("CUDA_CACHE_DISABLE")), b""
    if word == "EXIT":
        print("out of cheese", file=sys.stderr, flush=True)
        os._exit(3)
    if word == "HANG":
        with open(job.source.split()[1], "w") as f:
            f.write(str(os.getpid()))
        time.sleep(60)
    return compile(job)
compile_worker.compile_job = compile_job
sys.exit(compile_worker.main(sys.argv[1:]))
"""
MISBEHAVING = (sys.executable, "-c", _MISBEHAVING)


def _job(source: str, timeout_s: float = 30.0) -> CompileJob:
    return CompileJob(source, {}, ("-arch=sm_90", "--ptxas-options=-v"), ("k",), timeout_s)


def _compiled(jobs: Mapping[str, CompileJob], workers: int = 2) -> dict[str, Compilation]:
    replies = compile_all(jobs, workers=workers, command=MISBEHAVING)
    return {name: made for name, (made, _) in replies}


GOOD_JOB = _job("__global__ void k() {}")


def test_no_compilation_comes_from_the_drivers_cache_which_keeps_no_log() -> None:
    replies = _compiled({"a": _job("CACHE")}, workers=1)
    assert replies["a"].reason == "1"


def test_a_crash_or_a_hang_costs_only_its_own_job(tmp_path: Path) -> None:
    jobs = {
        "good 1": GOOD_JOB,
        "segfault": _job("SEGFAULT"),
        "hang": _job(f"HANG {tmp_path / 'pid'}", timeout_s=0.5),
        "exit": _job("EXIT"),
        "good 2": GOOD_JOB,
        "bad": _job("nonsense"),
        "good 3": GOOD_JOB,
    }
    replies = _compiled(jobs)
    assert {name: reply.outcome for name, reply in replies.items()} == {
        "good 1": Outcome.OK,
        "segfault": Outcome.CRASHED,
        "hang": Outcome.TIMED_OUT,
        "exit": Outcome.CRASHED,
        "good 2": Outcome.OK,
        "bad": Outcome.COMPILE_FAILED,
        "good 3": Outcome.OK,
    }
    assert replies["segfault"].reason == "the compiler died with SIGSEGV"
    assert replies["exit"].reason == "the compiler exited with 3: out of cheese"
    assert replies["hang"].reason == "the compiler took longer than 0.5 s"
    assert _is_gone(int((tmp_path / "pid").read_text()))


def test_a_worker_that_cannot_start_is_one_line() -> None:
    command = (sys.executable, "-c", "import sys; print('no NVRTC here', file=sys.stderr); exit(3)")
    with pytest.raises(ToolMissing, match=r"did not start: exited with 3: no NVRTC here$"):
        list(compile_all({"a": GOOD_JOB}, workers=1, command=command))
    with pytest.raises(ToolMissing, match="cannot start a compiler process"):
        list(compile_all({"a": GOOD_JOB}, workers=1, command=("/nonexistent/python",)))


def test_leaving_early_ends_the_workers(tmp_path: Path) -> None:
    jobs = {"hang": _job(f"HANG {tmp_path / 'pid'}"), "good": GOOD_JOB}
    replies = compile_all(jobs, workers=2, command=MISBEHAVING)
    assert next(replies)[0] == "good"
    hanging = _appears(tmp_path / "pid")
    replies.close()
    assert _is_gone(hanging)


_PARENT = """
import sys
from tests.build.test_pool import MISBEHAVING, _job
from fa_tune.build import pool as compile_pool
from fa_tune.build.pool import compile_all, ended_under
jobs = {str(i): _job(f"HANG {sys.argv[1]}/{i}", timeout_s=float(sys.argv[2])) for i in range(2)}
list(compile_all(jobs, workers=2, command=MISBEHAVING))
"""


def _parent(tmp_path: Path, timeout_s: float) -> tuple[subprocess.Popen[str], list[int]]:
    parent = interruptible(
        [sys.executable, "-c", _PARENT, str(tmp_path), str(timeout_s)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    return parent, [_appears(tmp_path / name) for name in "01"]


def test_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    parent, workers = _parent(tmp_path, timeout_s=60)
    parent.send_signal(signal.SIGINT)
    _, stderr = parent.communicate(timeout=30)
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert all(_is_gone(pid) for pid in workers)


def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    parent, workers = _parent(tmp_path, timeout_s=2)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while not all(_is_gone(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_the_users_folder_shadows_no_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cuda.py", "fa_tune.py", "json.py"):
        (tmp_path / name).write_text("raise SystemExit('shadowed')")
    (tmp_path / "k.cuh").write_text("#error the user's own file\n")
    monkeypatch.chdir(tmp_path)
    jobs = {"good": GOOD_JOB, "stray": _job('#include "k.cuh"\n__global__ void k() {}')}
    replies = dict(compile_all(jobs, workers=1))
    assert replies["good"][0].outcome is Outcome.OK
    assert "cannot open source file" in replies["stray"][0].reason


def _appears(path: Path) -> int:
    """The process id written to `path` by a hanging worker."""
    deadline = time.monotonic() + 20
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return int(path.read_text())


def _is_gone(pid: int) -> bool:
    """Whether a process is dead; one that only waits to be reaped is."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


def test_the_last_one_is_not_waited_for_as_long_as_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is known how long the others took; meanwhile `on_idle` is called, once."""
    monkeypatch.setattr(pool, "MIN_STRAGGLER_S", 1.0)
    monkeypatch.setattr(pool, "STRAGGLER_TIMES", 0.0)
    monkeypatch.setattr(pool, "MIN_IDLE_S", 0.3)
    jobs = {"hang": _job(f"HANG {tmp_path / 'pid'}", timeout_s=50.0)}
    jobs |= {f"good {i}": GOOD_JOB for i in range(pool.STRAGGLER_AFTER)}
    done: dict[str, Compilation] = {}
    lulls: list[int] = []

    def on_idle() -> None:
        lulls.append(len(done))

    for name, (made, _) in compile_all(jobs, workers=2, command=MISBEHAVING, on_idle=on_idle):
        done[name] = made
    assert lulls == [len(jobs) - 1], "when all others are done"
    assert done["hang"].outcome is Outcome.TIMED_OUT
    reason = done["hang"].reason
    assert ended_under(reason, 50.0)
    assert not ended_under(reason, 60.0)
    assert not ended_under(reason, 1.0)

    lulls.clear()
    del jobs["hang"]
    assert dict(compile_all(jobs, workers=2, command=MISBEHAVING, on_idle=on_idle)).keys() == (
        jobs.keys()
    )
    assert lulls == [], "nothing lags behind"
