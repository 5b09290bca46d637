"""The README's two commands are the ones that CI gives, and do what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.project_files import ROOT

COMMANDS = ("./run search --seq-lens 1024,4096 --d-head 128", "./check")


def test_readme_and_ci_give_the_same_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    ci = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    for command in COMMANDS:
        line = rf"{re.escape(command)}(\s+#.*)?$"
        assert re.search(rf"^\s*{line}", readme, re.MULTILINE), f"README.md lacks {command}"
        # With variables before it, perhaps, that say where CI keeps its files.
        run = rf"^\s*(?:\w+=\S+ )*{line}"
        assert re.search(run, ci, re.MULTILINE), f".ci/run does not run {command}"


def test_the_readmes_excerpt_is_of_what_its_first_command_prints(tmp_path: Path) -> None:
    """Without a GPU, from the recordings that come with fa-tune."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (excerpt,) = re.findall(r"An excerpt of such a run:\n\n```text\n(.*?)```", readme, re.DOTALL)
    arguments = COMMANDS[0].removeprefix("./run ").split()
    places = ["--profiler", "replay", "--registry", str(tmp_path / "registry.json")]
    done = subprocess.run(
        [sys.executable, "-m", "fa_tune", *arguments, *places],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stdout
    printed = iter(done.stdout.splitlines())
    lacking = [line for line in excerpt.splitlines() if line and line not in printed]
    assert not lacking, done.stdout
