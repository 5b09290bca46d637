"""What the end of one child is told as."""

from __future__ import annotations

from pathlib import Path

from fa_tune.core.model import Outcome
from fa_tune.workers.protocol import EventKind
from tests.workers.runs import child


def test_the_end_of_a_child_that_finished(tmp_path: Path) -> None:
    end = child(tmp_path, {"a": "liar", "b": "wrong"})
    assert (end.exit_code, end.signal, end.finished, end.timed_out) == (0, None, True, False)
    assert end.failed_item is None
    assert end.results["a"].value == "true"
    assert end.results["b"].outcome is Outcome.WRONG_RESULT
    kinds = [event.kind for event in end.events]
    assert kinds == [
        EventKind.STARTED,
        EventKind.BEGIN,
        EventKind.DONE,
        EventKind.BEGIN,
        EventKind.FAILED,
        EventKind.FINISHED,
    ]
    assert "garbage without end" in (tmp_path / "stdout.log").read_text(errors="replace")
    end = child(tmp_path, {"a": "ok", "b": "segfault", "c": "ok"})
    assert (end.exit_code, end.signal, end.finished) == (None, "SIGSEGV", False)
    assert end.failed_item == "b"
    assert list(end.results) == ["a", "b"]
    assert end.results["b"].outcome is Outcome.CRASHED
