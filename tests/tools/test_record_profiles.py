"""The scripts that record what comes with the project ask for what the pages need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fa_tune.families.sm80.names import parse_short_form
from fa_tune.families.sm80.sets import PROGRESSION, get_kernel_configs
from tests.project_files import ROOT

PROFILES = ROOT / "tools" / "record_profiles.sh"
LADDER = ROOT / "tools" / "record_ladder.sh"

# Notes what it is asked for, and leaves what the script goes on with.
PRETENDED = """
import json, pathlib, sys
folder = pathlib.Path({folder!r})
with open(folder / "calls.jsonl", "a") as calls:
    print(json.dumps(sys.argv[1:]), file=calls)
if sys.argv[1] == "profile":
    if {fails!r}:
        raise SystemExit(3)
    print('{{"measurements": []}}')
else:
    (folder / "nvidia_x").mkdir(exist_ok=True)
    (folder / "nvidia_x" / "prog_events.csv").touch()
"""


@pytest.mark.parametrize("script", [PROFILES, LADDER], ids=lambda path: path.name)
def test_the_shell_reads_it(script: Path) -> None:
    done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert script.stat().st_mode & 0o100


def recorded(folder: Path, *, fails: bool = False) -> tuple[int, list[list[str]]]:
    """Exit status of the ladder's script, and what it asked for, call by call."""
    program = folder / "pretended.py"
    program.write_text(PRETENDED.format(folder=str(folder), fails=fails))
    env = {**os.environ, "FA_TUNE": f"{sys.executable} {program}", "TMPDIR": str(folder)}
    done = subprocess.run([LADDER, folder], env=env, capture_output=True, check=False)
    calls = (folder / "calls.jsonl").read_text().splitlines()
    return done.returncode, [json.loads(call) for call in calls]


def test_the_profiled_configs_are_the_ladder_and_one_of_the_fast_set(tmp_path: Path) -> None:
    status, (*_, profile) = recorded(tmp_path)
    assert status == 0
    forms = [word for word in profile if word.startswith("(")]
    assert tuple(forms[:-1]) == PROGRESSION
    assert parse_short_form(forms[-1]) in get_kernel_configs("fast")
    assert "explain" in profile
    kept = tmp_path / "nvidia_x" / "ladder_explain.json"
    assert json.loads(kept.read_text()) == {"measurements": []}


def test_both_methods_rank_the_ladder(tmp_path: Path) -> None:
    _, (*searches, _) = recorded(tmp_path)
    assert [call[call.index("--profiler") + 1] for call in searches] == ["ncu", "events"]
    for call in searches:
        assert call[call.index("--kernels") + 1] == "prog"
        assert call[call.index("--record") + 1] == str(tmp_path)


def test_counters_that_were_not_taken_replace_none(tmp_path: Path) -> None:
    (tmp_path / "nvidia_x").mkdir()
    old = tmp_path / "nvidia_x" / "ladder_explain.json"
    old.write_text("old")
    status, _ = recorded(tmp_path, fails=True)
    assert status == 3
    assert old.read_text() == "old"
