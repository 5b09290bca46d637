"""Help is grouped, and its examples are commands that run."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fa_tune.build.cache import ArtifactStore
from fa_tune.cli import cli
from fa_tune.commands.shared.grouped_help import HEADINGS, GroupedCommand
from fa_tune.core.paths import default_cache_dir
from tests.commands.console import Console
from tests.conftest import lend_kernels
from tests.project_files import ROOT
from tests.repo.test_docs import dry_parse

# What has to run on the GPU, or reads files that the reader has; these are only parsed.
NEEDS_MORE = {
    *("bench", "run", "verify", "build", "record-space", "bench-decisions", "bench-search"),
    *("bench-between", "capture", "prove", "judge"),
    *("doctor", "completion", "export", "registry merge", "spaces import", "spaces export"),
}


def _walk(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
    yield " ".join(words), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from _walk(child, (*words, name))


COMMANDS = [(name, command) for name, command in _walk(cli, ()) if name]


def _examples() -> list[tuple[str, str]]:
    """(command, line) of every example in a command's help that begins with the program."""
    found = []
    for name, command in COMMANDS:
        text = (command.help or "").partition("Example")[2].replace("\\\n", "")
        lines = [line.strip() for line in text.splitlines()]
        found += [(name, line) for line in lines if line.startswith("fa-tune ")]
    return found


EXAMPLES = _examples()
RUN = [
    line
    for name, line in EXAMPLES
    if " ".join(line.split()[1:3]) not in NEEDS_MORE
    and line.split()[1] not in NEEDS_MORE
    and "--export" not in line  # ncu itself writes that file
    and "--kernels wide" not in line  # thousands of configs
    and "--captured" not in line  # a program's file
    and "--strategy" not in line  # slow: many proposals
]


def _headings(command: click.Command) -> list[str]:
    text = command.get_help(click.Context(command, info_name="it"))
    return re.findall(r"^(\w[\w ]*):$", text, re.MULTILINE)


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_help_fits_80_columns(name: str, command: click.Command) -> None:
    context = click.Context(command, info_name=f"fa-tune {name}", terminal_width=80)
    assert not [line for line in command.get_help(context).splitlines() if len(line) > 80]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_every_option_is_in_the_help_once(name: str, command: click.Command) -> None:
    if not isinstance(command, GroupedCommand):
        return
    text = command.get_help(click.Context(command, info_name="it"))
    for option in command.params:
        if isinstance(option, click.Option):
            pattern = rf"^  (-\w, )?{re.escape(option.opts[0])}\b(?!-)"
            assert len(re.findall(pattern, text, re.MULTILINE)) == 1, option.name
    order = [heading for heading in _headings(command) if heading in HEADINGS]
    assert order == sorted(order, key=list(HEADINGS).index)


@pytest.mark.parametrize("name", [name for name, command in COMMANDS if len(command.params) > 3])
def test_commands_have_an_example(name: str) -> None:
    assert any(name == given for given, _ in EXAMPLES)


@pytest.mark.parametrize("line", [line for _, line in EXAMPLES])
def test_examples_parse(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    dry_parse(line)


def _words(line: str) -> list[str]:
    words = shlex.split(line)[1:]
    return words[: words.index(">")] if ">" in words else words


@pytest.fixture
def console(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    artifacts: ArtifactStore,
) -> Console:
    """In a folder with the recordings, on a machine without a GPU, where what other tests have
    compiled is not compiled again."""
    for name in [n for n in os.environ if n.startswith("FA_TUNE_") or n == "KERNELS"]:
        monkeypatch.delenv(name)
    for name in ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    lend_kernels(artifacts, default_cache_dir())
    monkeypatch.setattr("fa_tune.core.devices.find_device", lambda index=0: None)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").symlink_to(ROOT / "profiles")
    return Console(capsys)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry that the first example in need of one fills."""
    return tmp_path_factory.mktemp("kept") / "registry.json"


@pytest.mark.xdist_group("examples")  # of which some need what others keep
@pytest.mark.parametrize("line", RUN)
def test_examples_run_without_a_gpu(
    console: Console, kept: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    if line.startswith("fa-tune registry"):
        monkeypatch.setenv("FA_TUNE_REGISTRY", str(kept))
    if line.startswith("fa-tune registry") and not kept.exists():
        assert console("search", "--dtype", "fp16", "--seq-lens", "4096").status == 0
    done = console(*_words(line))
    assert done.status == 0, done.err
    assert done.out
