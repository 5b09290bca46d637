from __future__ import annotations

from pathlib import Path

import pytest

from fa_tune.commands.shared.progress import PlainProgress, watching
from tests.commands.console import on_a_terminal

WORK = """
import sys, time
from fa_tune.commands.shared.progress import watching
with watching(quiet="--quiet" in sys.argv) as progress:
    progress.stage("compile", 4)
    for name in ("one", "two", "[red]three"):
        progress.advance(name)
        time.sleep(0.15)
    progress.note("a [bold]note[/bold] of\\nmore than one line")
    progress.warn("mind the clock")
    progress.stage("measure", 3)
    progress.leader("(FP16, 128) [fast] 5.0 ms")
    progress.advance("x")
    time.sleep(0.3)
    print("the result")
    if "--raise" in sys.argv:
        raise SystemExit(7)
print(type(progress).__name__)
"""


def _on_a_terminal(
    tmp_path: Path, *arguments: str, term: str = "xterm", work: str = WORK
) -> tuple[str, str, int]:
    """(what the terminal got on stderr, stdout, status) of the work above."""
    return on_a_terminal(["-c", work, *arguments], tmp_path, TERM=term, COLUMNS="140")


def test_a_terminal_gets_a_bar_with_time_left_and_leader_and_its_cursor_back(
    tmp_path: Path,
) -> None:
    seen, out, status = _on_a_terminal(tmp_path, "--raise")
    assert (status, out) == (7, "the result\n")  # results are untouched by the bar
    for word in ("compile", "3/4", "left", "[red]three", "measure", "1/3"):
        assert word in seen
    assert "best so far: (FP16, 128) [fast] 5.0 ms" in seen
    assert "a [bold]note[/bold] of more than one line" in seen
    assert "warning: mind the clock" in seen
    assert seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")


@pytest.mark.parametrize(("arguments", "term"), [(("--quiet",), "xterm"), ((), "dumb")])
def test_quiet_or_a_plain_terminal_gets_lines(
    tmp_path: Path, arguments: tuple[str, ...], term: str
) -> None:
    seen, out, _ = _on_a_terminal(tmp_path, *arguments, term=term)
    assert out.endswith("PlainProgress\n")
    assert seen.splitlines() == [
        "a [bold]note[/bold] of more than one line",
        "warning: mind the clock",
    ]


def test_no_terminal_gets_lines_and_none_twice(capsys: pytest.CaptureFixture[str]) -> None:
    with watching(quiet=False) as progress:
        progress.stage("compile", 2)
        progress.advance("one")
        progress.leader("one")
        progress.note("a\nnote")
    assert capsys.readouterr().err == "a note\n"
    progress = PlainProgress()
    progress.warn("mind the clock")
    progress.tell("the clock", ["mind the clock"])
    progress.tell("something else")
    assert capsys.readouterr().err == "warning: mind the clock\nsomething else\n"


SEVERAL = """
import time
from fa_tune.commands.shared.progress import watching
with watching(quiet=False) as progress:
    progress.stage("compile", 1)
    lanes = [progress.lane(f"GPU {n}") for n in range(2)]
    for lane in lanes:
        lane.stage("verify", 2)
        lane.advance("x")
    time.sleep(0.3)
    for lane in lanes:
        lane.stage("measure", 4)
        lane.leader("(FP16, 128) 5.0 ms")
        lane.advance("y")
    time.sleep(0.3)
    lanes[1].warn("mind the clock")
    progress.stage("confirm", 1)
    time.sleep(0.3)
"""


def test_boards_at_work_have_a_bar_each(tmp_path: Path) -> None:
    seen, _, status = _on_a_terminal(tmp_path, work=SEVERAL)
    assert status == 0
    for n in range(2):
        assert f"GPU {n}: verify" in seen
        assert f"GPU {n}: measure" in seen
    assert "best so far: (FP16, 128) 5.0 ms" in seen
    assert "warning: mind the clock" in seen
    last = seen[seen.rindex("confirm") :]
    assert "GPU" not in last, "the next stage of all takes their place"


def test_stages_are_timed_and_those_of_one_name_together(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("fa_tune.commands.shared.progress.time.monotonic", lambda: now)
    progress = PlainProgress()
    for stage, begins in (("compile", 101.0), ("verify", 104.0), ("compile", 104.5)):
        now = begins
        progress.stage(stage, 1)
    now = 106.0
    lane = progress.lane("GPU 1")
    now = 107.0
    lane.stage("measure", 1)
    now = 110.0
    assert progress.stages_s() == {
        "start": 1.0,
        "compile": 4.5,
        "verify": 0.5,
        "several GPUs": 4.0,
    }


def test_long_work_says_how_far_it_is_where_there_is_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("fa_tune.commands.shared.progress.time.monotonic", lambda: now)
    monkeypatch.setattr("fa_tune.commands.shared.progress.EVERY_S", 10.0)
    for quiet, lines in ((False, ["space: 4 of 9", "space: 8 of 9"]), (True, [])):
        with watching(quiet) as progress:
            progress.stage("space", 9)
            for _ in range(9):
                now += 2.5
                progress.advance()
        assert capsys.readouterr().err.splitlines() == lines
