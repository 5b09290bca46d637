"""Programs between the supervisor and its worker, such as a profiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.core.errors import ToolMissing
from fa_tune.core.model import Outcome
from fa_tune.workers.supervisor import WorkerUnusable
from tests.workers.runs import NOISY_WRAPPER, SILENCE_S, child, run


def test_a_noisy_wrapper_changes_nothing(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    results = run(
        {"a": "ok", "liar": "liar", "bad": "segfault", "slow": "hang", "z": "ok"},
        wrapper=NOISY_WRAPPER,
        item_timeout_s=SILENCE_S,
        run_dir=runs,
    )
    assert results["bad"].outcome is Outcome.CRASHED
    assert "(SIGSEGV)" in results["bad"].reason
    assert results["slow"].outcome is Outcome.TIMED_OUT
    assert {results[name].outcome for name in ("a", "liar", "z")} == {Outcome.OK}
    first, *others = sorted(runs.iterdir())
    assert len(others) == 2  # after `bad`, and after `slow`
    assert "==PROF== Disconnected" in (first / "stdout.log").read_text(errors="replace")


def test_a_wrapper_that_leaves_first_ends_the_run(tmp_path: Path) -> None:
    wrapper = ["sh", "-c", '"$@" & sleep 0.6; exit 6', "wrapper"]
    end = child(tmp_path, {"a": "ok", "b": "hang"}, wrapper=wrapper)
    assert end.exit_code == 6
    assert not end.finished
    assert end.results["a"].outcome is Outcome.OK
    assert end.failed_item == "b"


def test_a_wrapper_can_tidy_up_before_it_is_killed(tmp_path: Path) -> None:
    script = 'trap "echo clocks reset >$0; exit 1" TERM; "$@" & wait $!'
    wrapper = ["sh", "-c", script, str(tmp_path / "tidy.log")]
    results = run({"a": "hang"}, wrapper=wrapper, item_timeout_s=SILENCE_S)
    assert results["a"].outcome is Outcome.TIMED_OUT
    assert (tmp_path / "tidy.log").read_text() == "clocks reset\n"


def test_a_worker_moved_out_of_the_group_is_ended_too() -> None:
    results = run({"bad": "hang", "z": "ok"}, wrapper=["setsid", "-w"], item_timeout_s=SILENCE_S)
    assert results["bad"].outcome is Outcome.TIMED_OUT
    assert results["z"].outcome is Outcome.OK


def test_a_wrapper_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("#!/no/such/interpreter\n")
    (tmp_path / "tool").chmod(0o755)
    with pytest.raises(WorkerUnusable, match=r"cannot run .*tool"):
        run({"a": "ok"}, wrapper=[str(tmp_path / "tool")])
    with pytest.raises(ToolMissing, match="no-such-profiler not found on PATH"):
        run({"a": "ok"}, wrapper=["no-such-profiler"])
