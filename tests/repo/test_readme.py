"""The README's two commands are the ones that CI gives."""

from __future__ import annotations

import re

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
