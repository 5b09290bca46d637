"""Every command starts in a clean process and explains itself; docs/cli.md says the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

import cli_docs
from fa_tune.cli import main
from tests.project_files import ROOT

COMMANDS = list(cli_docs.walk(main, "fa-tune"))
IDS = [" ".join(words) for words, _ in COMMANDS]
RUN = "import sys; sys.argv[0] = 'fa-tune'; from fa_tune.cli import main; sys.exit(main())"


def _fa_tune(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(cwd), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(("words", "context"), COMMANDS, ids=IDS)
def test_each_command_runs_with_help(
    words: list[str], context: click.Context, tmp_path: Path
) -> None:
    done = _fa_tune(*words[1:], "--help", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Usage: fa-tune")
    assert not done.stderr
    assert not list(tmp_path.iterdir()), "asking for help leaves files"


@pytest.mark.parametrize(("words", "context"), COMMANDS, ids=IDS)
def test_everything_is_explained(words: list[str], context: click.Context) -> None:
    assert context.command.help, f"{' '.join(words)} has no help"
    for parameter in context.command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help or parameter.hidden, f"{words}: {parameter.opts} has no help"


@pytest.mark.parametrize(("words", "context"), COMMANDS, ids=IDS)
def test_every_variable_is_named_after_the_program(
    words: list[str], context: click.Context
) -> None:
    """Declared on its option and shown in --help, so that no variable is a secret."""
    for parameter in context.command.params:
        names = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar or []
        for name in names:
            assert name.startswith("FA_TUNE_") or name == "KERNELS", f"{words}: {name}"
            assert name in context.get_help(), f"{words}: --help does not show {name}"


def test_reference_page_is_up_to_date(tmp_path: Path) -> None:
    path = ROOT / "docs" / "cli.md"
    assert path.is_file(), "docs/cli.md is missing: ./check fix writes it"
    # In a process of its own: click keeps a command's help option from its first use, and
    # another test may have called the command without its group.
    page = tmp_path / "cli.md"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    tool = [sys.executable, str(ROOT / "tools" / "pages" / "cli_docs.py"), str(page)]
    subprocess.run(tool, env=environment, check=True)
    assert path.read_text(encoding="utf-8") == page.read_text(encoding="utf-8"), "run: ./check fix"
